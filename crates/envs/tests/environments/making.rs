//! What is made, and how often.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cubicle_envs::{Cache, EnvSettings, Environments};

use crate::site::{Site, TODAY, is_root, name, open_to_all, python, skip, tenant, want, want_as};
use crate::wheels::{file, module, wheel};

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_is_made_once_and_then_found_without_uv() {
    let Some(site) = Site::new("an_environment_is_made_once_and_then_found_without_uv") else { return };
    module(&site.wheels(), "alpha", "1.0", &["beta>=1"]);
    module(&site.wheels(), "alpha", "0.9", &[]);
    module(&site.wheels(), "beta", "1.5", &[]);
    let environments = site.open().await;
    let made = environments.ensure(&tenant(), &want_as("data", &["alpha>=0.5"])).await.unwrap();
    assert_eq!(made.cache, Cache::Miss);
    assert!(!made.build.is_zero());
    assert_eq!(made.packages, ["alpha==1.0", "beta==1.5"]);
    assert_eq!(made.modules, ["alpha"]);
    assert_eq!(made.name, name("data"));
    assert_eq!(made.target, format!("/mnt/envs/{}", made.key));
    assert_eq!(made.python, format!("{}/bin/python", made.target));
    assert_eq!(made.created_at.as_second(), TODAY);
    assert_eq!(environments.interpreter().await.unwrap().short_version(), made.python_version);
    let code = "import alpha, beta, sys; print(alpha.VERSION, beta.VERSION, sys.version_info[:2])";
    if made.prefix.is_none() {
        let (major, minor) = made.python_version.split_once('.').unwrap();
        assert_eq!(python(&made.path, code), format!("1.0 1.5 ({major}, {minor})"));
    }
    std::fs::remove_file(site.uv()).unwrap();
    let found = environments.ensure(&tenant(), &want(&[" ALPHA >= 0.5"])).await.unwrap();
    assert_eq!(
        (found.cache, found.key, found.build),
        (Cache::Hit, made.key.clone(), std::time::Duration::ZERO)
    );
    // Each of the packages is installed for itself, and one environment stays without any.
    assert_eq!((site.runs("pip compile"), site.runs("venv"), site.runs("pip install")), (1, 3, 2));
    let counts = environments.counts();
    assert_eq!((counts.hits, counts.misses, counts.resolutions, counts.builds), (1, 1, 1, 1));
    assert_eq!(site.left(), Vec::<std::path::PathBuf>::new());
    // Other names for the same packages are the same tree, with the modules of what was asked for.
    site.wrap("");
    let more = environments.ensure(&tenant(), &want(&["beta", "alpha"])).await.unwrap();
    assert_eq!((more.key, more.modules), (made.key, vec!["alpha".to_owned(), "beta".to_owned()]));
    assert_eq!(environments.counts().builds, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_who_want_the_same_at_once_have_it_made_once() {
    let Some(site) = Site::new("fifty_who_want_the_same_at_once_have_it_made_once") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let environments = site.open().await;
    let mut waiting = Vec::new();
    for number in 0..50 {
        let environments = environments.clone();
        let wanted = want_as(&format!("name-{number}"), &["alpha"]);
        waiting.push(tokio::spawn(async move { environments.ensure(&tenant(), &wanted).await }));
    }
    let mut keys = BTreeSet::new();
    for waiter in waiting {
        keys.insert(waiter.await.unwrap().unwrap().key);
    }
    assert_eq!(keys.len(), 1);
    assert_eq!((site.runs("pip compile"), site.runs("venv"), site.runs("pip install")), (1, 2, 1));
    assert_eq!(environments.list(&tenant()).len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_share_trees_and_do_not_see_each_other() {
    let Some(site) = Site::new("tenants_share_trees_and_do_not_see_each_other") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let environments = site.open().await;
    let first = environments.ensure(&name("acme"), &want_as("mine", &["alpha"])).await.unwrap();
    site.later(100);
    assert!(environments.list(&name("other")).is_empty());
    assert!(environments.find(&name("other"), &name("mine")).is_none());
    let second = environments.ensure(&name("other"), &want_as("theirs", &["alpha"])).await.unwrap();
    assert_eq!((second.key, second.cache), (first.key.clone(), Cache::Hit));
    let listed = environments.list(&name("other"));
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_str(), listed[0].created_at.as_second()), ("theirs", TODAY + 100));
    assert_eq!(environments.find(&name("acme"), &name("mine")).unwrap().key, first.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_sealed_compiled_and_tells_nothing_of_the_host() {
    let Some(site) = Site::new("a_tree_is_sealed_compiled_and_tells_nothing_of_the_host") else { return };
    let entry_points = "[console_scripts]\nalpha-tool = alpha:main\n";
    wheel(
        &site.wheels(),
        "alpha",
        "1.0",
        &[],
        vec![
            file("alpha/__init__.py", "def main():\n    print('ran')\n"),
            file("alpha/broken.py", "this is no python\n"),
            file("alpha/tests/test_alpha.py", "X = 1\n"),
            file("alpha-1.0.dist-info/entry_points.txt", entry_points),
        ],
    );
    let environments = site.open().await;
    let made = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    let mut compiled = 0;
    let place = site.path().to_str().unwrap().as_bytes().to_vec();
    each(&made.path, &mut |path, about| {
        let shown = path.display();
        if about.is_symlink() {
            return;
        }
        let mode = about.mode() & 0o7777;
        assert!(matches!(mode, 0o444 | 0o555), "{shown} has mode {mode:o}");
        if is_root() {
            assert_eq!((about.uid(), about.gid()), (0, 0), "{shown}");
        }
        if about.is_file() {
            // Its other name is in the part, where only this process's user can come.
            assert_eq!(about.nlink(), 2, "{shown}");
            let bytes = std::fs::read(path).unwrap();
            assert!(
                !bytes.windows(place.len()).any(|window| window == place),
                "{shown} names the host's directory"
            );
            compiled += usize::from(shown.to_string().ends_with(".pyc"));
        }
    });
    assert_eq!(compiled, 1);
    let parts = std::fs::metadata(site.root().join("parts")).unwrap();
    assert_eq!(parts.mode() & 0o7777, 0o700);
    if made.prefix.is_none() {
        // The script finds its interpreter beside itself, wherever the tree is mounted.
        #[expect(clippy::disallowed_methods, reason = "the test uses a script of the environment")]
        let ran = std::process::Command::new(made.path.join("bin/alpha-tool")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "ran\n", "{}", String::from_utf8_lossy(&ran.stderr));
        // What `pip install` puts into the home directory of a sandbox is found, after the environment's own.
        let code = "import site; print(site.ENABLE_USER_SITE)";
        assert_eq!(python(&made.path, code), "True");
    }
}

fn each(path: &Path, look: &mut impl FnMut(&Path, &std::fs::Metadata)) {
    let about = path.symlink_metadata().unwrap();
    look(path, &about);
    if about.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            each(&entry.unwrap().path(), look);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_releases_are_seen_after_a_day() {
    let Some(site) = Site::new("newer_releases_are_seen_after_a_day") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let environments = site.open().await;
    let first = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    module(&site.wheels(), "alpha", "2.0", &[]);
    site.later(23 * 3600);
    let same = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!((same.key, same.cache), (first.key, Cache::Hit));
    site.later(2 * 3600);
    let newer = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!((newer.packages, newer.cache), (vec!["alpha==2.0".to_owned()], Cache::Miss));
    assert_eq!(environments.counts().resolutions, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uv_that_its_user_cannot_reach_is_used_from_a_copy() {
    let test = "an_uv_that_its_user_cannot_reach_is_used_from_a_copy";
    if !is_root() {
        return skip(test, "needs root: only root runs uv as another user");
    }
    let Some(site) = Site::new(test) else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let home = site.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::hard_link(site.path().join("uv-itself"), home.join("uv")).unwrap();
    std::fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let settings = EnvSettings { uv: None, path: vec![home], ..site.settings() };
    let environments = Environments::open(settings).await.unwrap();
    environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interpreter_that_others_cannot_run_does_not_count() {
    let test = "an_interpreter_that_others_cannot_run_does_not_count";
    if !is_root() {
        return skip(test, "needs root: only root runs interpreters as another user");
    }
    let Some(site) = Site::new(test) else { return };
    let home = site.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let answer = r#"{"version": "3.99.0", "implementation": "cpython", "abi": "x", "platform": "x", "libc": "",
                    "prefix": "HOME", "executable": "HOME/python3"}"#;
    let script = format!("#!/bin/sh\ncat <<'END'\n{}\nEND\n", answer.replace("HOME", home.to_str().unwrap()));
    std::fs::write(home.join("python3"), script).unwrap();
    open_to_all(&home.join("python3"));
    let with = |path: &Path| EnvSettings { path: vec![path.to_owned()], ..site.settings() };
    std::fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let environments = Environments::open(with(&home)).await.unwrap();
    let chosen = environments.interpreter().await.map(|found| found.version.clone());
    assert_ne!(chosen.unwrap_or_default(), "3.99.0");
    // The same one counts as soon as everybody can run it, unless the host has one in /usr that is new enough.
    open_to_all(&home);
    let environments = Environments::open(with(&home)).await.unwrap();
    let chosen = environments.interpreter().await.unwrap();
    assert!(chosen.version == "3.99.0" || chosen.prefix.is_none());
    if chosen.version == "3.99.0" {
        let prefix = chosen.prefix.as_ref().unwrap();
        assert_eq!(
            (prefix.source.as_path(), chosen.inside.as_str()),
            (home.as_path(), format!("{}/python3", prefix.target).as_str())
        );
    }
}
