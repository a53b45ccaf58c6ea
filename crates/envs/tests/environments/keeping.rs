//! What is kept, what goes, and what a restart finds.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use cubicle_envs::{Budget, Cache, EnvSettings, Environments};
use cubicle_model::Kind;

use crate::site::{Site, name, tenant, want, want_as};
use crate::wheels::module;

fn small(site: &Site, most: usize) -> EnvSettings {
    let budget = Budget { most, ttl: Duration::from_secs(1000), ..Budget::default() };
    EnvSettings { budget, ..site.settings() }
}

fn packages(site: &Site) {
    for package in ["alpha", "beta", "gamma"] {
        module(&site.wheels(), package, "1.0", &[]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_unused_goes_and_what_is_in_use_stays() {
    let Some(site) = Site::new("the_longest_unused_goes_and_what_is_in_use_stays") else { return };
    packages(&site);
    let environments = Environments::open(small(&site, 2)).await.unwrap();
    let nothing = BTreeSet::new();
    environments.sweep(&nothing).await.unwrap();
    let alpha = environments.ensure(&tenant(), &want_as("alpha", &["alpha"])).await.unwrap();
    site.later(10);
    let beta = environments.ensure(&tenant(), &want_as("beta", &["beta"])).await.unwrap();
    site.later(10);
    drop(beta);
    // The oldest is in use, so that the next one goes.
    let gamma = environments.ensure(&tenant(), &want_as("gamma", &["gamma"])).await.unwrap();
    let names = |environments: &Environments| {
        environments.list(&tenant()).into_iter().map(|listed| listed.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&environments), ["alpha", "gamma"]);
    assert!(alpha.path.join("bin/python").is_symlink());
    assert_eq!((environments.size().0, site.trees().len(), environments.counts().evictions), (2, 2, 1));
    // Mounted in a sandbox is in use, too.
    let mounted = BTreeSet::from([alpha.key.clone()]);
    drop((alpha, gamma));
    site.later(5000);
    let gone = environments.sweep(&mounted).await.unwrap();
    assert_eq!((gone.len(), names(&environments)), (1, vec!["alpha".to_owned()]));
    assert_eq!(environments.sweep(&nothing).await.unwrap().len(), 1);
    assert!(site.trees().is_empty() && site.left().is_empty());
    // What went is made again from its lock, without a new resolution.
    let resolutions = environments.counts().resolutions;
    let again = environments.ensure(&tenant(), &want(&["gamma"])).await.unwrap();
    assert_eq!((again.cache, environments.counts().resolutions), (Cache::Miss, resolutions));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_before_it_is_known_what_is_mounted() {
    let Some(site) = Site::new("nothing_goes_before_it_is_known_what_is_mounted") else { return };
    packages(&site);
    let environments = Environments::open(small(&site, 1)).await.unwrap();
    for package in ["alpha", "beta", "gamma"] {
        environments.ensure(&tenant(), &want(&[package])).await.unwrap();
        site.later(5000);
    }
    environments.delete(&tenant(), &environments.list(&tenant())[0].name).await.unwrap();
    assert_eq!(site.trees().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_that_uses_it_keeps_it() {
    let Some(site) = Site::new("another_process_that_uses_it_keeps_it") else { return };
    packages(&site);
    let first = Environments::open(small(&site, 1)).await.unwrap();
    let held = first.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    // It has nothing to do with the first but the directory.
    let second = Environments::open(small(&site, 1)).await.unwrap();
    site.later(5000);
    assert_eq!(second.sweep(&BTreeSet::new()).await.unwrap(), []);
    drop(held);
    assert_eq!(second.sweep(&BTreeSet::new()).await.unwrap().len(), 1);
    // The first one finds out when it is asked.
    let again = first.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert!(again.path.is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_one_is_gone_unless_others_have_it() {
    let Some(site) = Site::new("a_deleted_one_is_gone_unless_others_have_it") else { return };
    packages(&site);
    let environments = site.open().await;
    environments.sweep(&BTreeSet::new()).await.unwrap();
    drop(environments.ensure(&tenant(), &want_as("data", &["alpha"])).await.unwrap());
    drop(environments.ensure(&name("other"), &want_as("data", &["alpha"])).await.unwrap());
    environments.delete(&tenant(), &name("data")).await.unwrap();
    assert!(environments.list(&tenant()).is_empty());
    assert_eq!((environments.list(&name("other")).len(), site.trees().len()), (1, 1));
    let fault = environments.delete(&tenant(), &name("data")).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::NotFound);
    // One in use loses its name and stays.
    let used = environments.find(&name("other"), &name("data")).unwrap();
    environments.delete(&name("other"), &name("data")).await.unwrap();
    assert!(used.path.is_dir());
    drop(used);
    drop(environments.ensure(&tenant(), &want_as("data", &["beta"])).await.unwrap());
    environments.delete(&tenant(), &name("data")).await.unwrap();
    assert_eq!(site.trees().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finds_everything_in_the_files() {
    let Some(site) = Site::new("a_restart_finds_everything_in_the_files") else { return };
    packages(&site);
    let environments = site.open().await;
    let made = environments.ensure(&tenant(), &want_as("data", &["alpha"])).await.unwrap();
    site.later(50);
    environments.ensure(&tenant(), &want_as("data", &["alpha"])).await.unwrap();
    environments.sweep(&BTreeSet::new()).await.unwrap();
    let before = environments.list(&tenant());
    drop(environments);
    std::fs::remove_file(site.uv()).unwrap();
    let environments = site.open().await;
    assert_eq!(environments.list(&tenant()), before);
    let found = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!((found.cache, found.key, found.modules), (Cache::Hit, made.key, vec!["alpha".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_whole_is_never_used() {
    let Some(site) = Site::new("what_is_not_whole_is_never_used") else { return };
    packages(&site);
    type Damage = fn(&std::path::Path);
    let damage: [(&str, Damage); 4] = [
        ("half a manifest", |tree| {
            let path = tree.join("manifest.json");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(path, &text[..text.len() / 2]).unwrap();
        }),
        ("no manifest", |tree| std::fs::remove_file(tree.join("manifest.json")).unwrap()),
        ("a file without its contents", |tree| {
            let path = tree.join("env/bin/activate");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        }),
        ("another one's manifest", |tree| {
            let path = tree.join("manifest.json");
            let text = std::fs::read_to_string(&path).unwrap();
            let key = tree.file_name().unwrap().to_str().unwrap();
            std::fs::write(path, text.replace(key, &"0".repeat(64))).unwrap();
        }),
    ];
    for (what, damage) in damage {
        let made = site.open().await.ensure(&tenant(), &want_as("data", &["alpha"])).await.unwrap();
        let (tree, key) = (made.path.parent().unwrap().to_owned(), made.key.clone());
        drop(made);
        damage(&tree);
        let environments = site.open().await;
        assert!(site.trees().is_empty() && site.left().is_empty(), "{what}");
        assert!(environments.list(&tenant()).is_empty(), "{what}");
        let again = environments.ensure(&tenant(), &want_as("data", &["alpha"])).await.unwrap();
        assert_eq!((again.cache, again.key), (Cache::Miss, key), "{what}");
    }
}
