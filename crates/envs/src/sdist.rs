//! Packages that have only their sources. Building one runs its code, so that this is done in a sandbox, which has no
//! network and gets what the build needs as an environment made of wheels.

use std::fmt;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use cubicle_model::egress::WebAddress;
use cubicle_model::{Fault, Kind, Name};
use pep508_rs::pep440_rs::{Version, VersionSpecifiers};
use pep508_rs::{PackageName, Requirement, VerbatimUrl, VersionOrUrl};
use serde::{Deserialize, Serialize};

use crate::build::{Workshop, blocking, io_fault, write_for};
use crate::index::Source;
use crate::program::{NotRun, Run};
use crate::trouble::Trouble;
use crate::work::Work;
use crate::{Ready, Requirements, files};

/// Runs in the sandbox, by the interpreter of the job's environment: `python -c BUILD_PROGRAM ARCHIVE DIRECTORY`. It puts
/// one wheel into the directory and prints its name last.
pub const BUILD_PROGRAM: &str = include_str!("sdist/build.py");
/// Asks an index for sources and gets them. It runs outside, isolated, and reads archives without running anything.
const FETCH_PROGRAM: &str = include_str!("sdist/fetch.py");
const LARGEST_WHEEL: usize = 256 * 1024 * 1024;
const PATIENCE: Duration = Duration::from_secs(120);
/// Every package that has to be built is a sandbox and some minutes.
pub(crate) const MOST: usize = 8;
/// What builds with setuptools need that say nothing, as PEP 518 has it.
const USUAL_BUILD: [&str; 2] = ["setuptools>=40.8.0", "wheel"];

/// One build. The archive and the environment are all that the sandbox gets.
#[derive(Debug)]
pub struct SdistJob {
    pub tenant: Name,
    pub package: String,
    pub version: String,
    /// The source archive, a file of the host that is read and never unpacked here.
    pub archive: PathBuf,
    /// What the build needs, all from wheels; to be attached read-only.
    pub environment: Ready,
}

/// What a sandbox made. Both parts are hostile input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltWheel {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// Somebody who has sandboxes: each job gets a fresh one without network, with the trust and limits of its tenant.
#[async_trait]
pub trait SdistBuilder: Send + Sync + fmt::Debug {
    async fn build(&self, job: &SdistJob) -> Result<BuiltWheel, Fault>;
}

/// A source archive on an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Offer {
    filename: String,
    url: String,
    sha256: Option<String>,
    #[serde(default)]
    index: String,
}

/// Sources that were fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) version: String,
    pub(crate) archive: PathBuf,
    pub(crate) sha256: String,
    pub(crate) build_requires: Vec<String>,
    /// Keeps the archive.
    _work: Work,
}

#[derive(Debug, Deserialize)]
struct Contents {
    sha256: String,
    requires: Option<Vec<String>>,
}

impl Workshop {
    /// Gets the newest sources of the package that the requirements allow.
    pub(crate) async fn fetch_sdist(
        &self,
        package: &str,
        requirements: &Requirements,
        source: &Source,
    ) -> Result<Fetched, Fault> {
        let work = self.begin().await?;
        let mut places = self.places(source).await;
        let links = match source {
            Source::Operator(indexes) => indexes.find_links.clone(),
            Source::Request(_) => Vec::new(),
        };
        places.retain(|place| !place.is_empty());
        let ask = serde_json::json!({ "list": package, "indexes": places, "links": links });
        let offers: Vec<Offer> = self.fetcher(&work, &ask, source).await?;
        let allowed = specifiers(package, requirements);
        let (version, offer) = choose(package, &offers, &allowed).ok_or_else(|| {
            Trouble::Unresolvable(format!("'{package}' has neither a wheel nor sources that fit")).fault()
        })?;
        let name = Path::new(&offer.filename).file_name().and_then(|name| name.to_str()).unwrap_or("sources");
        let archive = work.path().join(name);
        let get = serde_json::json!({ "get": offer, "to": archive, "links": links });
        let contents: Contents = self.fetcher(&work, &get, source).await?;
        let build_requires = contents.requires.unwrap_or_else(|| USUAL_BUILD.map(str::to_owned).to_vec());
        Ok(Fetched {
            version: version.to_string(),
            archive,
            sha256: contents.sha256,
            build_requires,
            _work: work,
        })
    }

    async fn places(&self, source: &Source) -> Vec<String> {
        match source {
            Source::Request(index) => vec![index.address().to_string()],
            Source::Operator(indexes) if indexes.no_index => Vec::new(),
            Source::Operator(indexes) => {
                let told = source.variables();
                let mut places: Vec<String> = told.into_iter().flat_map(|(_, value)| words(&value)).collect();
                if indexes.default_index.is_none() {
                    places.extend(self.uv.built_in_index().await);
                }
                places
            }
        }
    }

    async fn fetcher<T: for<'de> Deserialize<'de>>(
        &self,
        work: &Work,
        ask: &serde_json::Value,
        source: &Source,
    ) -> Result<T, Fault> {
        // Addresses may hold passwords, and arguments can be read by everybody.
        let question = work.path().join("question.json");
        write_for(&question, &ask.to_string(), self.user).map_err(io_fault)?;
        let mut variables = self.uv.variables().clone();
        variables.extend(
            source
                .variables()
                .into_iter()
                .filter(|(name, _)| name.ends_with("PROXY"))
                .map(|(name, value)| (name.to_owned(), value)),
        );
        let run = Run {
            program: self.python.program.clone(),
            arguments: ["-I", "-S", "-c", FETCH_PROGRAM, &question.display().to_string()]
                .map(str::to_owned)
                .to_vec(),
            variables,
            directory: work.path().to_owned(),
            user: self.user,
            timeout: PATIENCE,
        };
        let ran = run.run().await.map_err(|error| match error {
            NotRun::TimedOut => Trouble::TimedOut.fault(),
            NotRun::Start(error) => {
                Fault::new(Kind::Internal, "the interpreter cannot be started").because(error)
            }
        })?;
        match ran.code {
            Some(0) => serde_json::from_str(&ran.stdout)
                .map_err(|error| Fault::new(Kind::Internal, "sources cannot be looked for").because(error)),
            Some(3) => {
                Err(Trouble::BadPackage(ran.stderr.lines().last().unwrap_or_default().to_owned()).fault())
            }
            _ => Err(Trouble::IndexDown(ran.stderr.lines().last().unwrap_or_default().to_owned()).fault()),
        }
    }

    /// Where the wheel of these sources is, or comes.
    pub(crate) fn wheel_place(&self, tenant: &Name, sha256: &str) -> PathBuf {
        self.layout.wheels(tenant).join(sha256)
    }

    /// Takes a wheel that a sandbox made, when it is called what it must be called.
    pub(crate) async fn accept_wheel(
        &self,
        tenant: &Name,
        package: &str,
        fetched: &Fetched,
        wheel: BuiltWheel,
    ) -> Result<PathBuf, Fault> {
        check_wheel(package, &fetched.version, &wheel)?;
        let (place, user) = (self.wheel_place(tenant, &fetched.sha256), self.user);
        blocking(move || {
            let fill = || {
                let fresh = place.with_extension(format!("new-{}", std::process::id()));
                files::make_directory(&fresh, 0o755)?;
                files::write(&fresh.join(&wheel.name), &wheel.bytes, 0o644)?;
                if let Some(user) = user {
                    chown(&fresh, Some(user.uid), Some(user.gid))?;
                }
                files::remove_tree(&place)?;
                std::fs::rename(&fresh, &place)
            };
            files::make_directory(place.parent().unwrap_or(&place), 0o755).map_err(io_fault)?;
            fill().map_err(io_fault)?;
            Ok(place)
        })
        .await
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().filter(|word| word.parse::<WebAddress>().is_ok()).map(str::to_owned).collect()
}

/// What is asked of the package itself; one that comes along with another may have any version.
fn specifiers(package: &str, requirements: &Requirements) -> Vec<VersionSpecifiers> {
    let parsed =
        requirements.lines().iter().filter_map(|line| Requirement::<VerbatimUrl>::from_str(line).ok());
    parsed
        .filter(|requirement| requirement.name.as_ref() == package)
        .filter_map(|requirement| match requirement.version_or_url {
            Some(VersionOrUrl::VersionSpecifier(specifiers)) => Some(specifiers),
            _ => None,
        })
        .collect()
}

fn choose<'a>(
    package: &str,
    offers: &'a [Offer],
    allowed: &[VersionSpecifiers],
) -> Option<(Version, &'a Offer)> {
    let fitting = offers.iter().filter_map(|offer| {
        let version = version_of(package, &offer.filename)?;
        let fits = allowed.iter().all(|specifiers| specifiers.contains(&version));
        fits.then_some((version, offer))
    });
    // A version that is no release counts only where there is no other.
    fitting.max_by(|(a, _), (b, _)| (!a.any_prerelease(), a).cmp(&(!b.any_prerelease(), b)))
}

/// The version in `name-version.tar.gz`.
fn version_of(package: &str, filename: &str) -> Option<Version> {
    let stem = [".tar.gz", ".zip"].iter().find_map(|ending| filename.strip_suffix(ending))?;
    let (name, version) = stem.rsplit_once('-')?;
    let is_same = PackageName::new(name.to_owned()).is_ok_and(|name| name.as_ref() == package);
    is_same.then(|| Version::from_str(version).ok()).flatten()
}

fn check_wheel(package: &str, version: &str, wheel: &BuiltWheel) -> Result<(), Fault> {
    let refused = |why: &str| {
        Fault::new(Kind::Invalid, format!("building '{package}' made no wheel that can be used: {why}"))
            .hint("its sources are damaged or malicious; ask for another version")
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-!".contains(&byte);
    if wheel.bytes.len() > LARGEST_WHEEL || !wheel.bytes.starts_with(b"PK") {
        return Err(refused("it is no archive, or too large"));
    }
    if wheel.name.len() > 200 || !wheel.name.bytes().all(plain) || wheel.name.starts_with('.') {
        return Err(refused("its name is none of a file"));
    }
    let parts: Vec<&str> =
        wheel.name.strip_suffix(".whl").map(|stem| stem.split('-').collect()).unwrap_or_default();
    let [name, of, ..] = parts.as_slice() else { return Err(refused("its name is not that of a wheel")) };
    let same_name = PackageName::new((*name).to_owned()).is_ok_and(|name| name.as_ref() == package);
    let same_version = Version::from_str(of).ok() == Version::from_str(version).ok();
    if (5..=6).contains(&parts.len()) && same_name && same_version {
        Ok(())
    } else {
        Err(refused("its name says another package or version"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AllowedPackages;

    fn offers(names: &[&str]) -> Vec<Offer> {
        let offer = |name: &&str| Offer {
            filename: (*name).into(),
            url: String::new(),
            sha256: None,
            index: String::new(),
        };
        names.iter().map(offer).collect()
    }

    fn chosen(names: &[&str], requirement: &str) -> Option<String> {
        let requirements =
            Requirements::parse(&[requirement.to_owned()], &AllowedPackages::default()).unwrap();
        let offers = offers(names);
        choose("my-tool", &offers, &specifiers("my-tool", &requirements))
            .map(|(version, _)| version.to_string())
    }

    #[test]
    fn the_newest_release_that_is_asked_for_is_built() {
        let all = [
            "my_tool-1.0.tar.gz",
            "My.Tool-1.10.tar.gz",
            "my-tool-1.9.zip",
            "my_tool-2.0rc1.tar.gz",
            "other-9.tar.gz",
            "my_tool-3.0.whl",
        ];
        assert_eq!(chosen(&all, "my-tool"), Some("1.10".into()));
        assert_eq!(chosen(&all, "my_tool<1.10"), Some("1.9".into()));
        assert_eq!(chosen(&all, "another"), Some("1.10".into()));
        assert_eq!(chosen(&all, "my-tool>5"), None);
        assert_eq!(chosen(&["my_tool-2.0rc1.tar.gz"], "my-tool"), Some("2.0rc1".into()));
    }

    #[test]
    fn a_wheel_from_a_sandbox_must_be_called_what_it_is() {
        let wheel = |name: &str| BuiltWheel { name: name.into(), bytes: b"PK\x03\x04".to_vec() };
        for (name, fine) in [
            ("my_tool-1.0-py3-none-any.whl", true),
            ("my_tool-1.0-cp312-cp312-linux_x86_64.whl", true),
            ("other-1.0-py3-none-any.whl", false),
            ("my_tool-1.1-py3-none-any.whl", false),
            ("../my_tool-1.0-py3-none-any.whl", false),
            ("my_tool-1.0-py3-none-any.whl/x", false),
            ("my_tool-1.0.whl", false),
            (".my_tool-1.0-py3-none-any.whl", false),
            ("my_tool-1.0-py3-none-any.exe", false),
            ("", false),
        ] {
            assert_eq!(check_wheel("my-tool", "1.0", &wheel(name)).is_ok(), fine, "{name}");
        }
        let text = BuiltWheel { name: "my_tool-1.0-py3-none-any.whl".into(), bytes: b"text".to_vec() };
        assert!(check_wheel("my-tool", "1.0", &text).is_err());
    }
}
