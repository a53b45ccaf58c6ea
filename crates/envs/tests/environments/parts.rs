//! Packages are installed once, whatever environments have them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cubicle_envs::{Budget, Cache, Environments};

use crate::site::{Site, name, python, tenant, want, want_as};
use crate::wheels::{file, module, wheel};

fn code(tree: &Path, file: &str) -> PathBuf {
    let lib = std::fs::read_dir(tree.join("lib")).unwrap().next().unwrap().unwrap().path();
    lib.join("site-packages").join(file)
}

fn inode(path: &Path) -> (u64, u64) {
    let about = std::fs::symlink_metadata(path).unwrap();
    (about.ino(), about.nlink())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_is_installed_and_compiled_once_for_all_environments() {
    let Some(site) = Site::new("a_package_is_installed_and_compiled_once_for_all_environments") else {
        return;
    };
    for package in ["alpha", "beta"] {
        module(&site.wheels(), package, "1.0", &[]);
    }
    let environments = site.open().await;
    let one = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!((site.runs("venv"), site.runs("pip install")), (2, 1));
    let two = environments.ensure(&tenant(), &want(&["alpha", "beta"])).await.unwrap();
    assert_eq!((two.cache, site.runs("venv"), site.runs("pip install")), (Cache::Miss, 3, 2));
    // The third is made of what is there, without installing anything.
    let three = environments.ensure(&tenant(), &want(&["beta"])).await.unwrap();
    assert_eq!((three.cache, site.runs("venv"), site.runs("pip install")), (Cache::Miss, 3, 2));
    assert_eq!(site.parts().len(), 3);
    for part in ["alpha/__init__.py", "alpha-1.0.dist-info/RECORD"] {
        assert_eq!(inode(&code(&one.path, part)), inode(&code(&two.path, part)), "{part}");
        assert_eq!(inode(&code(&one.path, part)).1, 3, "{part}");
    }
    if one.prefix.is_none() {
        assert_eq!(python(&two.path, "import alpha, beta; print(alpha.VERSION, beta.VERSION)"), "1.0 1.0");
        // Byte code is used, and says where the module is in this environment.
        let seen = "import alpha; print(alpha.__cached__.rsplit('/')[-2], alpha.__loader__.get_code('alpha').co_filename)";
        let file = code(&one.path, "alpha/__init__.py");
        assert_eq!(python(&one.path, seen), format!("__pycache__ {}", file.display()));
    }
    assert!(site.left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_goes_with_the_last_environment_that_has_it() {
    let Some(site) = Site::new("a_package_goes_with_the_last_environment_that_has_it") else { return };
    for package in ["alpha", "beta"] {
        module(&site.wheels(), package, "1.0", &[]);
    }
    let environments = site.open().await;
    environments.sweep(&Default::default()).await.unwrap();
    drop(environments.ensure(&tenant(), &want_as("one", &["alpha"])).await.unwrap());
    drop(environments.ensure(&tenant(), &want_as("two", &["alpha", "beta"])).await.unwrap());
    environments.delete(&tenant(), &name("two")).await.unwrap();
    // The one that is left has alpha and what an environment has without packages.
    assert_eq!((site.trees().len(), site.parts().len()), (1, 2));
    let again = environments.ensure(&tenant(), &want_as("two", &["alpha", "beta"])).await.unwrap();
    assert_eq!((site.runs("venv"), site.runs("pip install")), (4, 3));
    drop(again);
    for last in ["one", "two"] {
        environments.delete(&tenant(), &name(last)).await.unwrap();
    }
    assert_eq!((site.trees().len(), site.parts().len(), site.left().len()), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_evicted_takes_its_packages_along() {
    let Some(site) = Site::new("what_is_evicted_takes_its_packages_along") else { return };
    for package in ["alpha", "beta"] {
        module(&site.wheels(), package, "1.0", &[]);
    }
    let mut settings = site.settings();
    settings.budget = Budget { most: 1, ..settings.budget };
    let environments = Environments::open(settings).await.unwrap();
    environments.sweep(&Default::default()).await.unwrap();
    drop(environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap());
    site.later(10);
    drop(environments.ensure(&tenant(), &want(&["beta"])).await.unwrap());
    environments.sweep(&Default::default()).await.unwrap();
    assert_eq!((site.trees().len(), site.parts().len()), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_that_bring_the_same_file_are_installed_as_uv_does_it() {
    let Some(site) = Site::new("packages_that_bring_the_same_file_are_installed_as_uv_does_it") else {
        return;
    };
    for package in ["alpha", "beta"] {
        let own = format!("{package}/__init__.py");
        let files =
            vec![file(&own, "VERSION = '1.0'\n"), file("both/__init__.py", &format!("OF = '{package}'\n"))];
        wheel(&site.wheels(), package, "1.0", &[], files);
    }
    let environments = site.open().await;
    let made = environments.ensure(&tenant(), &want(&["alpha", "beta"])).await.unwrap();
    assert_eq!(inode(&code(&made.path, "both/__init__.py")).1, 1);
    if made.prefix.is_none() {
        let seen = python(&made.path, "import alpha, beta, both; print(both.OF in ('alpha', 'beta'))");
        assert_eq!(seen, "True");
    }
    // Each of them alone is made of its part.
    let alone = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!(inode(&code(&alone.path, "both/__init__.py")).1, 2);
    drop((made, alone));
    drop(environments);
    // Both are found again.
    assert_eq!(site.open().await.list(&tenant()).len(), 2);
    assert!(site.left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_that_is_not_what_was_made_is_not_used() {
    let Some(site) = Site::new("a_package_that_is_not_what_was_made_is_not_used") else { return };
    for package in ["alpha", "beta"] {
        module(&site.wheels(), package, "1.0", &[]);
    }
    type Damage = fn(&Path);
    let damage: [(&str, Damage); 4] = [
        ("a file without its contents", |file| {
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o444)).unwrap();
        }),
        ("a file that can be written to", |file| {
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("no file", |file| {
            let directory = file.parent().unwrap();
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::remove_file(file).unwrap();
        }),
        ("no list", |file| {
            let part = file.ancestors().find(|path| path.join("part.json").exists()).unwrap();
            std::fs::write(part.join("part.json"), "{").unwrap();
        }),
    ];
    for (what, damage) in damage {
        let environments = site.open().await;
        environments.sweep(&Default::default()).await.unwrap();
        let whole = environments.ensure(&tenant(), &want_as("one", &["alpha"])).await.unwrap();
        let is_of_alpha = |part: &&PathBuf| {
            let lib = part.join("files/lib");
            lib.exists() && code(&part.join("files"), "alpha/__init__.py").exists()
        };
        let parts = site.parts();
        let part = parts.iter().find(is_of_alpha).unwrap();
        damage(&code(&part.join("files"), "alpha/__init__.py"));
        let made = environments.ensure(&tenant(), &want_as("two", &["alpha", "beta"])).await.unwrap();
        let file = code(&made.path, "alpha/__init__.py");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "VERSION = '1.0'\n", "{what}");
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o444, "{what}");
        drop((whole, made));
        for each in ["one", "two"] {
            environments.delete(&tenant(), &name(each)).await.unwrap();
        }
        assert_eq!((site.trees().len(), site.parts().len(), site.left().len()), (0, 0, 0), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn environments_that_share_a_package_can_be_made_and_removed_at_once() {
    let Some(site) = Site::new("environments_that_share_a_package_can_be_made_and_removed_at_once") else {
        return;
    };
    let packages = ["alpha", "beta", "gamma", "delta"];
    for package in packages {
        module(&site.wheels(), package, "1.0", &[]);
    }
    // As two processes: they have nothing in common but the directory.
    let both = [site.open().await, site.open().await];
    for environments in &both {
        environments.sweep(&Default::default()).await.unwrap();
    }
    let mut working = tokio::task::JoinSet::new();
    for (number, package) in packages.into_iter().enumerate().skip(1) {
        let environments = both[number % 2].clone();
        let called = format!("with-{package}");
        working.spawn(async move {
            for _ in 0..3 {
                let made =
                    environments.ensure(&tenant(), &want_as(&called, &["alpha", package])).await.unwrap();
                for one in ["alpha", package] {
                    let file = code(&made.path, &format!("{one}/__init__.py"));
                    assert_eq!(std::fs::read_to_string(file).unwrap(), "VERSION = '1.0'\n");
                }
                drop(made);
                environments.delete(&tenant(), &name(&called)).await.unwrap();
                environments.sweep(&Default::default()).await.unwrap();
            }
        });
    }
    while let Some(done) = working.join_next().await {
        done.unwrap();
    }
    for environments in &both {
        environments.sweep(&Default::default()).await.unwrap();
    }
    assert_eq!((site.trees().len(), site.parts().len(), site.left().len()), (0, 0, 0));
}
