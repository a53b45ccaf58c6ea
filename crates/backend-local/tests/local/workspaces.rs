//! Directories of the host as workspaces, and what a workspace is good for.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use cubicle_backend::Backend;
use cubicle_model::{Kind, Lifetime, Limit, Medium, Placement};

use crate::harness::{Host, output, place, run, skipped};

/// The user that owns workspaces on disk.
const CANONICAL: u32 = 1000;

/// A directory that a workspace can be made of, and the user that it belongs to.
fn workspace(host: &Host, name: &str) -> (PathBuf, u32) {
    let path = host.data().canonicalize().unwrap().join("workspaces").join(name);
    std::fs::create_dir_all(&path).unwrap();
    if !rustix::process::geteuid().is_root() {
        return (path, rustix::process::geteuid().as_raw());
    }
    std::os::unix::fs::chown(&path, Some(CANONICAL), Some(CANONICAL)).unwrap();
    (path, CANONICAL)
}

fn in_directory(path: PathBuf) -> Placement {
    Placement { workspace: Medium::Directory(path), ..place(Lifetime::Bound) }
}

#[tokio::test]
async fn a_workspace_has_one_owner_on_disk_whichever_sandbox_wrote_it() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let (path, owner) = workspace(&host, "shared");
    for round in 0..3 {
        let place = in_directory(path.clone());
        backend.ensure(&place).await.unwrap();
        let guest = backend.guest(place.id);
        let script = format!(
            "id -u; mkdir -p deep; echo {round} >> deep/rounds; echo {round} > file-{round}; cat deep/rounds"
        );
        let seen: String = (0..=round).map(|round| format!("{round}\n")).collect();
        assert_eq!(output(&guest, &script).await, format!("1000\n{seen}"));
        // Through the file operations of the guest, too.
        guest.write_file(format!("/workspace/written-{round}"), b"x", Default::default()).await.unwrap();
        for name in [format!("file-{round}"), format!("written-{round}"), "deep".into(), "deep/rounds".into()]
        {
            let metadata = std::fs::metadata(path.join(&name)).unwrap();
            assert_eq!(metadata.uid(), owner, "{name} in round {round}");
        }
        backend.destroy(place.id).await.unwrap();
    }
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn two_sandboxes_can_have_one_workspace_at_the_same_time() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let (path, _) = workspace(&host, "common");
    let (one, other) = (in_directory(path.clone()), in_directory(path));
    backend.ensure(&one).await.unwrap();
    backend.ensure(&other).await.unwrap();
    output(&backend.guest(one.id), "echo shared > note").await;
    assert_eq!(output(&backend.guest(other.id), "cat note; echo more >> note").await, "shared\n");
    assert_eq!(output(&backend.guest(one.id), "cat note").await, "shared\nmore\n");
}

#[tokio::test]
async fn a_directory_of_root_is_refused_as_a_workspace() {
    let Some(host) = Host::with_sandboxes().await else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can have a directory of root's");
    }
    let backend = host.backend().await;
    let (path, _) = workspace(&host, "of-root");
    std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
    let fault = backend.ensure(&in_directory(path)).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Denied, "{fault}");
    assert!(fault.way_out().unwrap().contains("chown"), "{fault}");
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn a_directory_that_nobody_allowed_is_refused_as_a_workspace() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let escape = host.options().mountable[0].join("link");
    std::os::unix::fs::symlink("/etc", &escape).unwrap();
    for path in ["/etc".into(), "/".into(), escape, host.options().mountable[0].join("../..")] {
        let fault = backend.ensure(&in_directory(path.clone())).await.unwrap_err();
        assert!(matches!(fault.kind(), Kind::Denied | Kind::Internal), "{}: {fault}", path.display());
    }
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn a_size_of_a_directory_is_refused_because_nobody_would_keep_it() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let mut place = in_directory(workspace(&host, "sized").0);
    place.limits.workspace = Limit::asked(1 << 20);
    let fault = backend.ensure(&place).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Denied, "{fault}");
    assert!(fault.way_out().is_some());
}

#[tokio::test]
async fn python_packages_can_be_installed_for_the_user_inside() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    let path = output(&guest, "echo $PYTHONUSERBASE:$PATH").await;
    assert!(path.starts_with("/home/agent/.local:/home/agent/.local/bin:"), "{path}");
    if run(&guest, "python3 -m pip --version").await.unwrap().exit != cubicle_model::Exit::Code(0) {
        return skipped("the host has no pip in /usr");
    }
    let script = "mkdir -p src/hello && cd src && echo 'def main(): print(\"installed\")' > hello/__init__.py && \
        printf '[project]\\nname=\"hello\"\\nversion=\"1\"\\n[project.scripts]\\nhello=\"hello:main\"\\n' > pyproject.toml && \
        python3 -m pip install --quiet --no-index --no-build-isolation . >&2 && hello";
    let outcome = run(&guest, script).await.unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(!said.contains("externally-managed"), "{said}");
    if said.contains("No module named 'setuptools'") || said.contains("BackendUnavailable") {
        return skipped("the host's python3 cannot build packages");
    }
    assert_eq!(outcome.stdout, b"installed\n", "{said}");
}
