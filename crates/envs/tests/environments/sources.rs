//! Packages that have only sources, with a builder. It takes the place of a sandbox, and runs what would run there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use cubicle_envs::{BUILD_PROGRAM, BuiltWheel, SdistBuilder, SdistJob};
use cubicle_model::{Fault, Kind};

use crate::site::{Site, name, python, tenant, want};
use crate::wheels::{file, module, sources, wheel};

/// A build backend in a few lines.
const BACKEND: &str = r#"
import os, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = dict(line.split(": ", 1) for line in open("PKG-INFO").read().splitlines())
    name, version = info["Name"], info["Version"]
    file = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, file), "w") as wheel:
        wheel.writestr(f"{name}.py", "BUILT = True\n")
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return file
"#;
const PROJECT: &str = "[build-system]\nrequires = [\"tinybackend\"]\nbuild-backend = \"tinybackend\"\n";

#[derive(Debug, Default)]
struct Builder {
    jobs: AtomicUsize,
    /// What it calls every wheel.
    called: Option<&'static str>,
}

#[async_trait]
impl SdistBuilder for Builder {
    async fn build(&self, job: &SdistJob) -> Result<BuiltWheel, Fault> {
        self.jobs.fetch_add(1, Ordering::SeqCst);
        let output = tempfile::tempdir().unwrap();
        #[expect(clippy::disallowed_methods, reason = "it takes the place of a sandbox")]
        let ran = std::process::Command::new(job.environment.path.join("bin/python"))
            .args(["-c", BUILD_PROGRAM])
            .args([&job.archive, output.path()])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let name = String::from_utf8(ran.stdout).unwrap().trim().to_owned();
        let bytes = std::fs::read(output.path().join(&name)).unwrap();
        Ok(BuiltWheel { name: self.called.map_or(name, str::to_owned), bytes })
    }
}

fn packages(site: &Site) {
    wheel(&site.wheels(), "tinybackend", "1.0", &[], vec![file("tinybackend.py", BACKEND)]);
    sources(&site.wheels(), "gamma", "1.0", vec![file("pyproject.toml", PROJECT)]);
    sources(&site.wheels(), "gamma", "2.0", vec![file("pyproject.toml", PROJECT)]);
    module(&site.wheels(), "alpha", "1.0", &["gamma<2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_are_built_by_the_builder_and_stay_with_their_tenant() {
    let Some(site) = Site::new("sources_are_built_by_the_builder_and_stay_with_their_tenant") else { return };
    packages(&site);
    let environments = site.open().await;
    if environments.interpreter().await.unwrap().prefix.is_some() {
        return crate::site::skip(
            "sources_are_built_by_the_builder_and_stay_with_their_tenant",
            "needs a Python in /usr",
        );
    }
    let builder = Arc::new(Builder::default());
    environments.build_sdists_with(builder.clone());
    let made = environments.ensure(&tenant(), &want(&["gamma<2"])).await.unwrap();
    assert_eq!(made.packages, ["gamma==1.0"]);
    assert_eq!(python(&made.path, "import gamma; print(gamma.BUILT)"), "True");
    assert_eq!(builder.jobs.load(Ordering::SeqCst), 1);
    let again = environments.ensure(&tenant(), &want(&["gamma<2"])).await.unwrap();
    assert_eq!((again.key, again.cache), (made.key.clone(), cubicle_envs::Cache::Hit));
    // Another tenant's sandbox builds its own.
    let other = environments.ensure(&name("other"), &want(&["gamma<2"])).await.unwrap();
    assert_ne!(other.key, made.key);
    assert_eq!(builder.jobs.load(Ordering::SeqCst), 2);
    // The newest is built when nothing else is asked for; a wheel that was built before is used again.
    let newest = environments.ensure(&tenant(), &want(&["gamma"])).await.unwrap();
    assert_eq!(newest.packages, ["gamma==2.0"]);
    site.later(100_000);
    environments.ensure(&tenant(), &want(&["gamma<2"])).await.unwrap();
    assert_eq!(builder.jobs.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wheel_that_is_not_what_was_to_be_built_is_refused() {
    let Some(site) = Site::new("a_wheel_that_is_not_what_was_to_be_built_is_refused") else { return };
    packages(&site);
    let environments = site.open().await;
    if environments.interpreter().await.unwrap().prefix.is_some() {
        return crate::site::skip(
            "a_wheel_that_is_not_what_was_to_be_built_is_refused",
            "needs a Python in /usr",
        );
    }
    environments.build_sdists_with(Arc::new(Builder {
        called: Some("alpha-9.0-py3-none-any.whl"),
        ..Builder::default()
    }));
    let fault = environments.ensure(&tenant(), &want(&["gamma"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Invalid);
    assert!(fault.message().contains("another package or version"), "{fault}");
    let alpha = environments.ensure(&tenant(), &want(&["tinybackend"])).await.unwrap();
    assert_eq!(alpha.packages, ["tinybackend==1.0"]);
}
