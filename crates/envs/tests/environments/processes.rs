//! Several processes with one directory, and one that is killed.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cubicle_envs::{EnvSettings, Environments, Indexes, ServiceUser};
use cubicle_model::Timestamp;

use crate::site::{Site, is_root, skip, tenant, want};
use crate::wheels::module;

const PLACE: &str = "CUBICLE_TEST_ENVS_PLACE";
const UV: &str = "CUBICLE_TEST_ENVS_UV";

/// Not a test of its own: what the others start in processes of their own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by other tests"]
async fn a_child_makes_an_environment() {
    #[expect(clippy::disallowed_methods, reason = "the test that started this one says where")]
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let clock = || Timestamp::from_second(crate::site::TODAY).unwrap();
    let mut settings = EnvSettings::new(place.join("environments"), Arc::new(clock));
    #[expect(clippy::disallowed_methods, reason = "the test that started this one says what")]
    let uv = std::env::var_os(UV).map_or_else(|| place.join("uv"), PathBuf::from);
    settings.uv = Some(uv);
    settings.indexes =
        Indexes { find_links: vec![place.join("wheels")], no_index: true, ..Indexes::default() };
    let environments = Environments::open(settings).await.unwrap();
    let made = environments.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    println!("key {} builds {}", made.key, environments.counts().builds);
}

fn child(site: &Site) -> Child {
    command(site).spawn().unwrap()
}

fn command(site: &Site) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the test starts itself again")]
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::a_child_makes_an_environment", "--ignored", "--nocapture"]);
    command.env(PLACE, site.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn said(child: Child) -> (String, usize) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("key ")).map(|(_, rest)| rest.to_owned());
    let line = line.unwrap_or_else(|| panic!("the child says {text}"));
    let (key, builds) = line.split_once(" builds ").unwrap();
    (key.to_owned(), builds.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_want_the_same_at_once_make_it_once() {
    let Some(site) = Site::new("processes_that_want_the_same_at_once_make_it_once") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let children: Vec<Child> = (0..4).map(|_| child(&site)).collect();
    let all: Vec<(String, usize)> = children.into_iter().map(said).collect();
    assert!(all.iter().all(|(key, _)| *key == all[0].0), "{all:?}");
    assert_eq!(all.iter().map(|(_, builds)| builds).sum::<usize>(), 1, "{all:?}");
    assert_eq!(site.runs("pip install"), 1);
    assert!(site.left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maker_that_is_killed_leaves_nothing_that_is_ever_used() {
    let Some(site) = Site::new("a_maker_that_is_killed_leaves_nothing_that_is_ever_used") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    // Killed while uv resolves, while it installs, and just after it has.
    for stop in ["compile", "install", "venv"] {
        let (reached, go) =
            (site.path().join(format!("wheels/{stop}")), site.path().join(format!("wheels/go-{stop}")));
        std::fs::set_permissions(site.wheels(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        site.wrap(&format!(
            "case \"$1 $2\" in *{stop}*) echo $$ >{r}.new; mv {r}.new {r}; until [ -e {g} ]; do sleep 0.01; done;; esac",
            r = reached.display(),
            g = go.display()
        ));
        let mut killed = child(&site);
        for _ in 0..6000 {
            if reached.exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let orphan: i32 = std::fs::read_to_string(&reached).unwrap().trim().parse().unwrap();
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!(site.trees().is_empty(), "killed at {stop}");
        assert!(!site.left().is_empty(), "killed at {stop}");
        // uv itself goes on for a while, into a directory that nobody will look at.
        std::fs::write(&go, "").unwrap();
        let stat = format!("/proc/{orphan}");
        for _ in 0..6000 {
            if !std::path::Path::new(&stat).exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let environments = site.open().await;
        assert!(site.trees().is_empty() && site.left().is_empty(), "killed at {stop}: {:?}", site.left());
        assert!(environments.list(&tenant()).is_empty(), "killed at {stop}");
        assert!(site.parts().is_empty(), "killed at {stop}: {:?}", site.parts());
        std::fs::remove_file(&reached).unwrap();
    }
    site.wrap("");
    site.open().await.ensure(&tenant(), &want(&["alpha"])).await.unwrap();
    assert_eq!(site.trees().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_gave_up_its_rights_makes_environments_with_what_root_prepared() {
    let test = "a_server_that_gave_up_its_rights_makes_environments_with_what_root_prepared";
    if !is_root() {
        return skip(test, "needs root: rights are given up");
    }
    let Some(site) = Site::new(test) else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    // Only root can look at this uv.
    let home = site.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::hard_link(site.path().join("uv-itself"), home.join("uv")).unwrap();
    std::fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut settings = EnvSettings { uv: Some(home.join("uv")), ..site.settings() };
    let owner = ServiceUser { uid: 64_888, gid: 64_888 };
    cubicle_envs::prepare(&mut settings, owner).await.unwrap();
    let uv = settings.uv.unwrap();
    assert!(uv.starts_with(site.root()), "{}", uv.display());
    let started = command(&site).env(UV, &uv).uid(owner.uid).gid(owner.gid).current_dir("/").spawn();
    let Ok(child) = started else { return skip(test, "the test itself is where others cannot run it") };
    let (key, builds) = said(child);
    assert_eq!(builds, 1);
    let tree = site.root().join("trees").join(key).join("env");
    assert_eq!(std::fs::metadata(tree).unwrap().uid(), owner.uid);
}
