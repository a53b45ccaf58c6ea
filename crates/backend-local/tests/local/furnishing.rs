//! Files are made before they are asked for, for a sandbox like the one before. One that is not like it gets its own.

use cubicle_backend::Backend;
use cubicle_model::{Lifetime, Limit, Limits, Medium, Placement};

use crate::harness::{Host, output, place};

/// More sandboxes of a kind than are prepared at a time, so that those prepared for one kind meet the next.
const OF_A_KIND: usize = 10;
const ROUNDS: usize = 2;

#[tokio::test]
async fn a_sandbox_has_the_files_it_asked_for_whatever_the_one_before_it_had() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let shared = host.data().canonicalize().unwrap().join("workspaces/shared");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(shared.join("note"), "").unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&shared, Some(1000), Some(1000)).unwrap();
    }
    let sized = |tmp: u64| Limits { tmp: Limit::asked(tmp), ..Limits::default() };
    let kinds = [
        (sized(4 << 20), Medium::Memory, ".cache\ntools\n"),
        (sized(8 << 20), Medium::Memory, ".cache\ntools\n"),
        (sized(8 << 20), Medium::Directory(shared), "note\n"),
    ];
    for (limits, workspace, files) in std::iter::repeat_n(&kinds, ROUNDS).flatten() {
        for _ in 0..OF_A_KIND {
            let (limits, workspace) = (*limits, workspace.clone());
            let place = Placement { limits, workspace, ..place(Lifetime::Bound) };
            backend.ensure(&place).await.unwrap();
            let guest = backend.guest(place.id);
            let blocks = output(&guest, "echo $(($(stat -f -c '%b * %S' /tmp)))").await;
            assert_eq!(blocks.trim(), limits.tmp.value.to_string());
            assert_eq!(output(&guest, "ls -A /tmp /dev/shm | grep -v :; touch /tmp/mine; true").await, "\n");
            assert_eq!(output(&guest, "ls -A /workspace").await, *files);
            backend.destroy(place.id).await.unwrap();
        }
    }
    host.is_clean_but_for(&[]).await;
}
