//! Attempts on what all tenants share.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use cubicle_envs::ServiceUser;
use cubicle_model::Kind;

use crate::site::{Site, is_root, python, skip, tenant, want};
use crate::wheels::{Entry, file, link, module, wheel};

#[tokio::test(flavor = "multi_thread")]
async fn code_that_a_package_wants_to_run_at_every_start_does_not_run_outside() {
    let Some(site) = Site::new("code_that_a_package_wants_to_run_at_every_start_does_not_run_outside") else {
        return;
    };
    let marks = site.path().join("marks");
    std::fs::create_dir(&marks).unwrap();
    std::fs::set_permissions(&marks, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mark = marks.join("mark");
    let start = format!("import sys; open({:?}, 'a').write(sys.executable)\n", mark.to_str().unwrap());
    let customize = format!("open({:?}, 'a').write('sitecustomize')\n", mark.to_str().unwrap());
    wheel(
        &site.wheels(),
        "evil",
        "1.0",
        &[],
        vec![
            file("evil.py", "X = 1\n"),
            file("evil.pth", &start),
            file("sitecustomize.py", &customize),
            file("usercustomize.py", &customize),
            file("compileall.py", &customize),
        ],
    );
    let environments = site.open().await;
    let made = environments.ensure(&tenant(), &want(&["evil"])).await.unwrap();
    assert!(!mark.exists(), "{}", std::fs::read_to_string(&mark).unwrap_or_default());
    // It is there, and runs where the environment is used.
    if made.prefix.is_none() {
        assert_eq!(python(&made.path, "import evil; print(evil.X)"), "1");
        assert!(mark.exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wheel_cannot_put_anything_outside_of_its_environment() {
    let Some(site) = Site::new("a_wheel_cannot_put_anything_outside_of_its_environment") else { return };
    let outside = site.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(outside.join("victim"), "untouched").unwrap();
    std::fs::set_permissions(outside.join("victim"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let at = |name: &str| outside.join(name).to_str().unwrap().to_owned();
    let up = format!("{}{}", "../".repeat(12), at("planted").trim_start_matches('/'));
    let attempts: Vec<(&str, Vec<Entry>)> = vec![
        ("climber", vec![file(&up, "planted")]),
        ("absolute", vec![file(&at("planted"), "planted")]),
        ("linker", vec![link("linker/way", &at("")), file("linker/way/planted", "planted")]),
        ("pointer", vec![link("pointer/victim", &at("victim")), file("pointer/__init__.py", "")]),
        ("data", vec![file(&format!("data-1.0.data/data/{up}"), "planted")]),
        ("scripts", vec![file(&format!("scripts-1.0.data/scripts/{up}"), "#!python\n")]),
        (
            "points",
            vec![file(
                "points-1.0.dist-info/entry_points.txt",
                &format!("[console_scripts]\n{up} = points:main\n"),
            )],
        ),
        ("replacer", vec![file("replacer-1.0.data/data/bin/python", "#!/bin/sh\necho replaced\n")]),
        ("configurer", vec![file("configurer-1.0.data/data/pyvenv.cfg", "home = /tmp\n")]),
    ];
    let environments = site.open().await;
    for (name, entries) in attempts {
        wheel(&site.wheels(), name, "1.0", &[], entries);
        match environments.ensure(&tenant(), &want(&[name])).await {
            // What uv leaves out does no harm. Whatever it installed is inside, and nothing of it leads out.
            Ok(made) => {
                leads_nowhere(&made.path, &made.path);
                let link = std::fs::read_link(made.path.join("bin/python")).unwrap();
                assert_eq!(
                    link.to_str().unwrap(),
                    environments.interpreter().await.unwrap().inside,
                    "{name}"
                );
                let configuration = std::fs::read_to_string(made.path.join("pyvenv.cfg")).unwrap();
                assert!(configuration.contains("relocatable = true"), "{name}: {configuration}");
            }
            Err(fault) => assert_eq!(fault.kind(), Kind::Invalid, "{name}: {fault} {fault:?}"),
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "{name} planted something");
        assert_eq!(std::fs::read_to_string(outside.join("victim")).unwrap(), "untouched", "{name}");
        assert!(site.left().is_empty(), "{name}");
    }
}

fn leads_nowhere(root: &std::path::Path, directory: &std::path::Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() && path != root.join("bin/python") {
            let target = std::fs::read_link(&path).unwrap();
            assert!(
                target.is_relative() && !target.starts_with(".."),
                "{} -> {}",
                path.display(),
                target.display()
            );
        } else if path.is_dir() && !path.is_symlink() {
            leads_nowhere(root, &path);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_what_the_lock_says_is_not_installed() {
    let Some(site) = Site::new("a_file_that_is_not_what_the_lock_says_is_not_installed") else { return };
    let path = module(&site.wheels(), "alpha", "1.0", &[]);
    // Between locking and installing somebody swaps the file.
    let other = site.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let swapped =
        wheel(&other, "alpha", "1.0", &[], vec![file("alpha/__init__.py", "VERSION = 'swapped'\n")]);
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(site.wheels(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    // What uv has read for the resolution must not save the day.
    site.wrap(&format!(
        "[ \"$2\" = install ] && {{ cat {} >{}; rm -rf {}; }}",
        swapped.display(),
        path.display(),
        site.root().join("cache/*").display()
    ));
    let environments = site.open().await;
    let fault = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Invalid, "{fault} {fault:?}");
    assert!(fault.message().contains("Hash mismatch"), "{fault}");
    assert!(site.trees().is_empty() && site.left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_who_runs_uv_cannot_change_a_finished_environment() {
    let test = "the_user_who_runs_uv_cannot_change_a_finished_environment";
    if !is_root() {
        return skip(test, "needs root: only root runs uv as another user");
    }
    let Some(site) = Site::new(test) else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let environments = site.open().await;
    let made = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    let code = std::fs::read_dir(made.path.join("lib")).unwrap().next().unwrap().unwrap().path();
    let file = code.join("site-packages/alpha/__init__.py");
    let before = std::fs::read(&file).unwrap();
    let user = ServiceUser::DEFAULT;
    let attempt = |script: &str| {
        #[expect(clippy::disallowed_methods, reason = "the test is the attacker")]
        let ran = std::process::Command::new("/bin/sh")
            .args(["-c", script])
            .uid(user.uid)
            .gid(user.gid)
            .current_dir(&made.path)
            .output()
            .unwrap();
        ran.status.success()
    };
    let (file, tree) = (file.to_str().unwrap(), made.path.parent().unwrap().to_str().unwrap().to_owned());
    assert!(attempt(&format!("cat {file}")), "everybody can read it");
    for script in [
        format!("echo x >>{file}"),
        format!("chmod u+w {file}"),
        format!("rm -f {file}"),
        format!("mv {file} {file}.old"),
        "touch bin/new".to_owned(),
        "ln -sf /bin/sh bin/python".to_owned(),
        format!("echo x >>{tree}/manifest.json"),
        format!("mv {tree} {tree}.old"),
        format!("mkdir {}/trees/x", site.root().display()),
        format!("ls {}/names", site.root().display()),
        format!("ls {}/locks", site.root().display()),
        format!("ls {}/parts", site.root().display()),
    ] {
        assert!(!attempt(&script), "{script}");
    }
    assert_eq!(std::fs::read(file).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_changed_in_the_cache_of_downloads_does_not_change_a_finished_environment() {
    let test = "what_is_changed_in_the_cache_of_downloads_does_not_change_a_finished_environment";
    let Some(site) = Site::new(test) else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let environments = site.open().await;
    let made = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    let poisoned = poison(&site.root().join("cache"));
    assert!(poisoned > 0, "nothing of the package is in the cache");
    let code = std::fs::read_dir(made.path.join("lib")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(code.join("site-packages/alpha/__init__.py")).unwrap();
    assert_eq!(text, "VERSION = '1.0'\n");
}

/// Appends to every module in the cache, in place.
fn poison(directory: &std::path::Path) -> usize {
    use std::io::Write;
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            count += poison(&path);
        } else if path.ends_with("alpha/__init__.py") {
            let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(b"VERSION = 'poisoned'\n").unwrap();
            count += 1;
        }
    }
    count
}
