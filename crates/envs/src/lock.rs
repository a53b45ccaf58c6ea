//! What a resolution came to: every package with its version and the files that may be installed for it.

use cubicle_model::{Fault, Kind, Name};
use serde::{Deserialize, Serialize};

use crate::{EnvKey, Interpreter};

/// Changes whenever the same lock would make another tree.
const FORMAT: u32 = 1;

/// A `pylock.toml`, read and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) text: String,
    pub(crate) packages: Vec<Locked>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Locked {
    /// Normalised.
    pub(crate) name: String,
    pub(crate) version: String,
    /// SHA-256 of every wheel that fits.
    files: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(default)]
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: Option<String>,
    #[serde(default)]
    wheels: Vec<Wheel>,
}

#[derive(Debug, Deserialize)]
struct Wheel {
    #[serde(default)]
    hashes: Hashes,
}

#[derive(Debug, Default, Deserialize)]
struct Hashes {
    sha256: Option<String>,
}

impl Lock {
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let document: Document = toml::from_str(text).map_err(|error| {
            Fault::new(Kind::Internal, "uv wrote a lock that cannot be read").because(error)
        })?;
        let mut packages = document.packages.into_iter().map(locked).collect::<Result<Vec<_>, _>>()?;
        packages.sort();
        Ok(Self { text: text.to_owned(), packages })
    }

    /// The key of what this lock makes. `tenant` is there where the environment must stay with it.
    pub(crate) fn key(&self, python: &Interpreter, index: &str, tenant: Option<&Name>) -> EnvKey {
        #[derive(Serialize)]
        struct Contents<'a> {
            format: u32,
            version: &'a str,
            abi: &'a str,
            platform: &'a str,
            inside: &'a str,
            index: &'a str,
            tenant: Option<&'a str>,
            packages: &'a [Locked],
        }
        let contents = Contents {
            format: FORMAT,
            version: &python.version,
            abi: &python.abi,
            platform: &python.platform,
            inside: &python.inside,
            index,
            tenant: tenant.map(Name::as_str),
            packages: &self.packages,
        };
        EnvKey::of(&serde_json::to_vec(&contents).expect("texts and numbers can be written"))
    }

    /// A lock for each of the packages alone. None where the text is not as uv writes it.
    pub(crate) fn apart(&self) -> Option<Vec<Self>> {
        let mut blocks = self.text.split("[[packages]]\n");
        let head = blocks.next()?;
        let alone = |block: &str| Self::parse(&format!("{head}[[packages]]\n{block}")).ok();
        let mut locks = blocks.map(alone).collect::<Option<Vec<_>>>()?;
        locks.sort_by(|a, b| a.packages.cmp(&b.packages));
        let packages: Vec<&Locked> = locks.iter().flat_map(|lock| &lock.packages).collect();
        let is_whole = packages.iter().copied().eq(&self.packages) && locks.len() == packages.len();
        is_whole.then_some(locks)
    }

    /// As in `pandas==2.2.0`.
    pub(crate) fn pinned(&self) -> Vec<String> {
        self.packages.iter().map(|package| format!("{}=={}", package.name, package.version)).collect()
    }
}

fn locked(package: Package) -> Result<Locked, Fault> {
    let name = package.name;
    let version = package.version.ok_or_else(|| {
        Fault::new(Kind::Invalid, format!("the package '{name}' has no version")).hint("ask for another one")
    })?;
    if package.wheels.is_empty() {
        return Err(crate::trouble::Trouble::NeedsBuild(name).fault());
    }
    let digest = |wheel: Wheel| {
        let digest = wheel.hashes.sha256.filter(|digest| digest.len() == 64);
        digest.ok_or_else(|| {
            Fault::new(Kind::Invalid, format!("the index has no SHA-256 for a file of '{name}'"))
                .hint("what is installed must be known by its contents; use an index that says them")
        })
    };
    let mut files = package.wheels.into_iter().map(digest).collect::<Result<Vec<_>, _>>()?;
    files.sort();
    Ok(Locked { name, version, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62";

    fn python() -> Interpreter {
        Interpreter {
            version: "3.12.1".into(),
            abi: "cpython-312-x86_64-linux-gnu".into(),
            platform: "linux-x86_64 glibc 2.36".into(),
            program: "/usr/bin/python3.12".into(),
            inside: "/usr/bin/python3.12".into(),
            prefix: None,
        }
    }

    fn text(name: &str, version: &str, digest: &str) -> String {
        format!(
            "lock-version = \"1.0\"\n[[packages]]\nname = \"{name}\"\nversion = \"{version}\"\n\
             wheels = [{{ url = \"https://files.example/{name}.whl\", hashes = {{ sha256 = \"{digest}\" }} }}]\n"
        )
    }

    fn key(text: &str, python: &Interpreter, index: &str, tenant: Option<&str>) -> EnvKey {
        let tenant = tenant.map(|name| name.parse().unwrap());
        Lock::parse(text).unwrap().key(python, index, tenant.as_ref())
    }

    #[test]
    fn whatever_makes_another_tree_makes_another_key() {
        let first = text("a", "1.0", DIGEST);
        let base = key(&first, &python(), "index", None);
        assert_eq!(base, key(&first, &python(), "index", None));
        let others = [
            key(&text("b", "1.0", DIGEST), &python(), "index", None),
            key(&text("a", "1.1", DIGEST), &python(), "index", None),
            key(&text("a", "1.0", &DIGEST.replace('7', "8")), &python(), "index", None),
            key(&first, &Interpreter { version: "3.12.2".into(), ..python() }, "index", None),
            key(&first, &Interpreter { abi: "cpython-312t".into(), ..python() }, "index", None),
            key(&first, &Interpreter { platform: "linux-aarch64".into(), ..python() }, "index", None),
            key(&first, &Interpreter { inside: "/mnt/python/x".into(), ..python() }, "index", None),
            key(&first, &python(), "another index", None),
            key(&first, &python(), "index", Some("acme")),
            key(&first, &python(), "index", Some("other")),
        ];
        let distinct: std::collections::HashSet<&EnvKey> = others.iter().chain([&base]).collect();
        assert_eq!(distinct.len(), others.len() + 1);
    }

    #[test]
    fn the_order_of_packages_and_files_does_not_matter() {
        let (a, b) = (text("a", "1.0", DIGEST), text("b", "2.0", DIGEST));
        assert_eq!(
            key(&format!("{a}{}", b.replace("lock-version = \"1.0\"\n", "")), &python(), "", None),
            key(&format!("{b}{}", a.replace("lock-version = \"1.0\"\n", "")), &python(), "", None)
        );
        assert_eq!(Lock::parse(&a).unwrap().pinned(), ["a==1.0"]);
    }

    #[test]
    fn what_is_not_known_by_its_contents_is_refused() {
        for (text, part) in [
            ("[[packages]]\nname = 'a'\nversion = '1'\nsdist = { url = 'x' }".to_owned(), "has no wheel"),
            ("[[packages]]\nname = 'a'\nversion = '1'\nwheels = [{ url = 'x' }]".to_owned(), "no SHA-256"),
            ("[[packages]]\nname = 'a'\ndirectory = { path = '/etc' }".to_owned(), "has no version"),
            (text("a", "1", "short"), "no SHA-256"),
            ("not toml".to_owned(), "cannot be read"),
        ] {
            let fault = Lock::parse(&text).unwrap_err();
            assert!(fault.message().contains(part), "{text}: {fault}");
        }
    }
}
