//! What goes wrong, and what callers are told.

use std::time::Duration;

use cubicle_envs::{AllowedPackages, EnvSettings, Environments, Indexes};
use cubicle_model::Kind;

use crate::site::{Site, is_root, skip, tenant, want};
use crate::wheels::{file, module, sources, wheel};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_resolved_is_said_with_its_reason_and_leaves_nothing() {
    let Some(site) = Site::new("what_cannot_be_resolved_is_said_with_its_reason_and_leaves_nothing") else {
        return;
    };
    module(&site.wheels(), "alpha", "1.0", &["beta==2.0"]);
    module(&site.wheels(), "beta", "1.0", &[]);
    let environments = site.open().await;
    for (wanted, part) in [
        (&["nowhere"][..], "nowhere"),
        (&["alpha"], "beta"),
        (&["beta>1"], "beta>1"),
        (&["beta<1", "beta>1"], "beta"),
    ] {
        let fault = environments.ensure(&tenant(), &want(wanted)).await.unwrap_err();
        assert_eq!(fault.kind(), Kind::Invalid, "{wanted:?}: {fault}");
        assert!(fault.message().starts_with("the requirements cannot be resolved: "), "{fault}");
        assert!(fault.message().contains(part), "{fault}");
        assert!(fault.way_out().is_some());
    }
    assert!(site.trees().is_empty() && site.left().is_empty());
    assert!(environments.list(&tenant()).is_empty());
    assert_eq!(environments.counts().failures, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_without_a_wheel_is_refused_and_none_of_its_code_is_run() {
    let Some(site) = Site::new("a_package_without_a_wheel_is_refused_and_none_of_its_code_is_run") else {
        return;
    };
    let mark = site.path().join("wheels/mark");
    std::fs::set_permissions(site.wheels(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let setup =
        format!("open({mark:?}, 'w')\nfrom setuptools import setup\nsetup(name='gamma', version='1.0')\n");
    sources(&site.wheels(), "gamma", "1.0", vec![file("setup.py", &setup)]);
    let environments = site.open().await;
    let fault = environments.ensure(&tenant(), &want(&["gamma"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Invalid);
    assert!(fault.message().contains("'gamma'") && fault.message().contains("needs a compiler"), "{fault}");
    assert!(!mark.exists());
    assert!(site.trees().is_empty() && site.left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_down_is_unavailable_and_what_is_there_is_still_used() {
    let Some(site) = Site::new("an_index_that_is_down_is_unavailable_and_what_is_there_is_still_used") else {
        return;
    };
    // Nobody listens where somebody just has.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let index = format!("http://ada:hunter2@127.0.0.1:{port}/simple");
    let indexes = Indexes { default_index: Some(index.parse().unwrap()), ..Indexes::default() };
    let mut settings = EnvSettings { indexes, ..site.settings() };
    settings.variables.insert("UV_HTTP_RETRIES".into(), "0".into());
    let environments = Environments::open(settings).await.unwrap();
    let fault = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Unavailable, "{fault}");
    assert!(fault.kind().retryable());
    assert!(!format!("{fault:?}").contains("hunter2"), "{fault:?}");
    assert!(site.trees().is_empty() && site.left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_expired_while_the_index_is_down_is_used_on() {
    let Some(site) = Site::new("a_lock_that_expired_while_the_index_is_down_is_used_on") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let environments = site.open().await;
    let first = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    site.later(100_000);
    site.wrap("echo 'error: Failed to fetch: http://a.example/' >&2; exit 2");
    let same = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!(same.key, first.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_uv_that_hangs_is_given_up() {
    let Some(site) = Site::new("a_uv_that_hangs_is_given_up") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    site.wrap("[ \"$2\" = compile ] && exec sleep 1000");
    let settings = EnvSettings { resolve_timeout: Duration::from_millis(200), ..site.settings() };
    let environments = Environments::open(settings).await.unwrap();
    let fault = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Unavailable);
    assert!(fault.message().contains("in time"), "{fault}");
    assert!(site.left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_uv_is_told_what_to_install_and_needs_no_restart_then() {
    let Some(site) = Site::new("a_host_without_uv_is_told_what_to_install_and_needs_no_restart_then") else {
        return;
    };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let away = site.path().join("uv.away");
    std::fs::rename(site.uv(), &away).unwrap();
    let environments = site.open().await;
    let fault = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Denied);
    assert!(fault.way_out().unwrap().contains("pip install uv"), "{fault:?}");
    std::fs::rename(&away, site.uv()).unwrap();
    environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_allowed_packages_can_be_had_and_what_they_need_comes_along() {
    let Some(site) = Site::new("only_allowed_packages_can_be_had_and_what_they_need_comes_along") else {
        return;
    };
    module(&site.wheels(), "alpha", "1.0", &["beta"]);
    module(&site.wheels(), "beta", "1.0", &[]);
    let allowed_packages = AllowedPackages::parse(["Alpha"]).unwrap();
    let environments = Environments::open(EnvSettings { allowed_packages, ..site.settings() }).await.unwrap();
    let fault = environments.ensure(&tenant(), &want(&["beta"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Denied);
    assert_eq!(site.runs(""), 0);
    let made = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!(made.packages, ["alpha==1.0", "beta==1.0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_is_larger_than_all_may_be_is_refused() {
    let Some(site) = Site::new("an_environment_that_is_larger_than_all_may_be_is_refused") else { return };
    wheel(&site.wheels(), "alpha", "1.0", &[], vec![file("alpha.py", &"# filler\n".repeat(100_000))]);
    let mut settings = site.settings();
    settings.budget.bytes = 500_000;
    let environments = Environments::open(settings).await.unwrap();
    let fault = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Invalid, "{fault}");
    assert!(site.trees().is_empty() && site.left().is_empty() && site.parts().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_nothing_half_made_is_left() {
    let test = "a_full_disk_is_said_and_nothing_half_made_is_left";
    if !is_root() {
        return skip(test, "needs root: a small disk is mounted");
    }
    let Some(site) = Site::new(test) else { return };
    let Some(disk) = SmallDisk::mount(&site.root()) else {
        return skip(test, "a small disk cannot be mounted here");
    };
    wheel(&site.wheels(), "alpha", "1.0", &[], vec![file("alpha.py", &"# filler\n".repeat(500_000))]);
    module(&site.wheels(), "beta", "1.0", &[]);
    let environments = site.open().await;
    let fault = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Unavailable, "{fault} {fault:?}");
    assert!(fault.message().contains("disk is full"), "{fault}");
    assert!(site.trees().is_empty() && site.left().is_empty(), "{:?}", site.left());
    assert!(site.parts().is_empty(), "{:?}", site.parts());
    // Nothing that was downloaded for it stands in the way of a smaller one.
    environments.ensure(&tenant(), &want(&["beta"])).await.unwrap();
    drop(environments);
    drop(disk);
}

/// A disk of a few megabytes at the path, for as long as it is there.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(path: &std::path::Path) -> Option<Self> {
        let at = path.to_str().unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=6m,mode=755", "tmpfs", at]).then(|| Self(path.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().unwrap()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    #[expect(clippy::disallowed_methods, reason = "the test mounts a small disk")]
    let ran = std::process::Command::new(program).args(arguments).status();
    ran.is_ok_and(|status| status.success())
}
