//! Gets a package from the registry that this host is configured for, and checks it against the hash that the registry tells.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::{Fault, Kind};
use serde_json::Value;
use sha2::{Digest, Sha512};

use crate::program;

/// What a host says about where packages come from.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Its `PATH`.
    pub path: String,
    pub home: Option<PathBuf>,
    /// Its `npm_config_registry`.
    pub registry: Option<String>,
}

impl Host {
    /// The package's archive, in the directory.
    pub(crate) fn get(&self, package: &str, version: &str, directory: &Path) -> Result<PathBuf, Fault> {
        let (archive, integrity) = if let Some(npm) = program::find(&self.path, "npm") {
            by_npm(&npm, package, version, directory)?
        } else if let (Some(curl), Some(registry)) = (program::find(&self.path, "curl"), self.configured()) {
            by_curl(&curl, &registry, package, version, directory)?
        } else {
            return Err(Fault::new(Kind::Unavailable, "there is no npm to get packages with").hint(
                "install npm; or set npm_config_registry and install curl; or get the package elsewhere and \
                 name it with --from FILE",
            ));
        };
        check(&archive, &integrity)?;
        Ok(archive)
    }

    /// The registry, as npm reads it.
    fn configured(&self) -> Option<String> {
        let registry = self.registry.clone().or_else(|| {
            let text = std::fs::read_to_string(self.home.as_ref()?.join(".npmrc")).ok()?;
            let lines = text.lines().filter_map(|line| line.split_once('='));
            lines.filter(|(key, _)| key.trim() == "registry").map(|(_, value)| value.trim().to_owned()).last()
        })?;
        let registry = registry.trim_end_matches('/').to_owned();
        (registry.starts_with("https://") || registry.starts_with("http://")).then_some(registry)
    }
}

fn by_npm(npm: &Path, package: &str, version: &str, directory: &Path) -> Result<(PathBuf, String), Fault> {
    let wanted = format!("{package}@{version}");
    let place = directory.display().to_string();
    // Its own cache would keep a second copy of hundreds of megabytes.
    let cache = directory.join("npm").display().to_string();
    let told = program::output(npm, &["view", &wanted, "dist", "--json", "--cache", &cache])
        .map_err(|fault| unreachable(fault, package, version))?;
    let dist: Value = serde_json::from_str(&told).unwrap_or_default();
    let integrity = dist["integrity"].as_str().ok_or_else(|| missing(package, version))?.to_owned();
    let arguments =
        ["pack", &wanted, "--pack-destination", &place, "--ignore-scripts", "--silent", "--cache", &cache];
    program::output(npm, &arguments).map_err(|fault| unreachable(fault, package, version))?;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut archives =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "tgz"));
    let archive = archives.next().ok_or_else(|| missing(package, version))?;
    Ok((archive, integrity))
}

fn by_curl(
    curl: &Path,
    registry: &str,
    package: &str,
    version: &str,
    directory: &Path,
) -> Result<(PathBuf, String), Fault> {
    let about = format!("{registry}/{}/{version}", package.replace('/', "%2f"));
    let get = |url: &str, to: &Path| {
        let to = to.display().to_string();
        let arguments = ["-fsSL", "--proto", "=http,https", "--retry", "3", "-o", &to, "--", url];
        program::output(curl, &arguments).map_err(|fault| unreachable(fault, package, version))
    };
    let (document, archive) = (directory.join("package.json"), directory.join("package.tgz"));
    get(&about, &document)?;
    let told = std::fs::read_to_string(&document).unwrap_or_default();
    let told: Value = serde_json::from_str(&told).unwrap_or_default();
    let dist = &told["dist"];
    let (Some(url), Some(integrity)) = (dist["tarball"].as_str(), dist["integrity"].as_str()) else {
        return Err(missing(package, version));
    };
    get(url, &archive)?;
    Ok((archive, integrity.to_owned()))
}

/// `sha512-` and base64.
fn check(archive: &Path, integrity: &str) -> Result<(), Fault> {
    let expected = integrity.split_whitespace().find_map(|hash| hash.strip_prefix("sha512-"));
    let Some(expected) = expected else {
        return Err(Fault::new(
            Kind::Denied,
            format!("the registry tells no sha512 of the package: {integrity}"),
        )
        .hint("get the package from where you trust it, and name it with --from FILE"));
    };
    let mut digest = Sha512::new();
    let read = File::open(archive).and_then(|mut file| io::copy(&mut file, &mut Hashing(&mut digest)));
    read.map_err(|error| Fault::new(Kind::Internal, "the package cannot be read").because(error))?;
    if STANDARD.encode(digest.finalize()) != expected {
        return Err(Fault::new(Kind::Denied, "the package is not what the registry says that it is").hint(
            "something on the way changed or cut it: try again, or get it elsewhere and use --from FILE",
        ));
    }
    Ok(())
}

struct Hashing<'a>(&'a mut Sha512);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unreachable(fault: Fault, package: &str, version: &str) -> Fault {
    Fault::new(Kind::Unavailable, format!("{package} {version} cannot be got: {}", fault.message())).hint(
        "is there such a version, and does this host reach its registry ('npm ping')? A package that you got elsewhere is \
         installed with --from FILE",
    )
}

fn missing(package: &str, version: &str) -> Fault {
    Fault::new(Kind::NotFound, format!("the registry has no {package} {version}"))
        .hint("name another version with --version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_was_changed_on_the_way_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        let good =
            "sha512-3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw==";
        assert_eq!(check(file.path(), &format!("sha1-x {good}")).map_err(|fault| fault.to_string()), Ok(()));
        std::fs::write(file.path(), "abd").unwrap();
        assert!(check(file.path(), good).unwrap_err().message().contains("not what the registry says"));
        assert!(check(file.path(), "sha1-x").unwrap_err().way_out().unwrap().contains("--from"));
    }

    #[test]
    fn the_registry_is_read_as_npm_reads_it() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".npmrc"), "//x/:_auth=y\nregistry = https://npm.example.org/all/\n")
            .unwrap();
        let written = Host { home: Some(home.path().to_owned()), ..Host::default() };
        assert_eq!(written.configured().as_deref(), Some("https://npm.example.org/all"));
        let named = Host { registry: Some("http://127.0.0.1:4873/".into()), ..written };
        assert_eq!(named.configured().as_deref(), Some("http://127.0.0.1:4873"));
        assert_eq!(Host::default().configured(), None);
        let none = Host::default().get("a", "1", Path::new("/")).unwrap_err();
        assert!(none.way_out().unwrap().contains("npm_config_registry"));
    }
}
