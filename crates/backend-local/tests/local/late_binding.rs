//! A ready sandbox gets all that its user brings at once, and its receipt tells.

use cubicle_backend::Backend;
use cubicle_model::receipt::Cgroups;
use cubicle_model::{Binding, FileToWrite, Kind, Lifetime, LimitRequest, Listener, Mount};

use crate::harness::{Host, in_time, output, place};

#[tokio::test]
async fn everything_that_binds_late_binds_together_and_amends_the_receipt() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let shared = host.options().mountable[0].join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::write(shared.join("note"), "from the host\n").unwrap();
    let limits = match backend.facts().cgroups {
        Cgroups::None => LimitRequest { wall_seconds: Some(600), ..Default::default() },
        _ => LimitRequest {
            memory: Some(64 << 20),
            millicpus: Some(500),
            pids: Some(40),
            wall_seconds: Some(600),
            ..Default::default()
        },
    };
    let late = Binding {
        env: [("WHO".to_owned(), "Ada".to_owned())].into(),
        files: vec![FileToWrite {
            path: "/workspace/in/hello.sh".into(),
            bytes: b"echo hello $WHO\n".into(),
            mode: 0o755,
        }],
        limits,
        mounts: vec![Mount { source: shared, target: "/mnt/shared".into(), read_only: true }],
        listeners: vec![Listener { port: 3128 }],
    };
    let bound = in_time("bind", backend.bind(place.id, &late)).await.unwrap();
    assert_eq!(bound.listeners.len(), 1);

    let receipt = bound.seen.receipt.expect("a ready sandbox has a receipt");
    let in_force = |name: &str| receipt.limits.iter().filter(|limit| limit.name == name).collect::<Vec<_>>();
    let asked = [
        ("memory", limits.memory),
        ("cpus", limits.millicpus),
        ("pids", limits.pids),
        ("wall_seconds", limits.wall_seconds),
    ];
    for (name, value) in asked {
        let Some(value) = value else { continue };
        let [limit] = in_force(name)[..] else {
            panic!("{name} stands there {} times", in_force(name).len())
        };
        assert_eq!((limit.value, limit.asked), (value, true), "{name}");
    }
    let mount =
        receipt.observed.mounts.iter().find(|mount| mount.target == "/mnt/shared").expect("it is named");
    assert!(mount.read_only && mount.nosuid && mount.nodev, "{mount:?}");

    let guest = backend.guest(place.id);
    assert_eq!(output(&guest, "sh in/hello.sh; cat /mnt/shared/note").await, "hello Ada\nfrom the host\n");
    assert_eq!(output(&guest, "touch /mnt/shared/mine 2>/dev/null || echo refused").await, "refused\n");
    let deadline = guest.health().await.unwrap().deadline_seconds;
    assert!(deadline <= 600, "{deadline}");
    backend.destroy(place.id).await.unwrap();
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn sizes_and_nonsense_are_refused_late_with_a_way_out() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let size = LimitRequest { workspace: Some(1 << 30), ..Default::default() };
    let fault = backend.bind(place.id, &Binding { limits: size, ..Default::default() }).await.unwrap_err();
    assert_eq!((fault.kind(), fault.way_out().is_some()), (Kind::Denied, true), "{fault}");

    let little = LimitRequest { memory: Some(1), ..Default::default() };
    let fault = backend.bind(place.id, &Binding { limits: little, ..Default::default() }).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Invalid, "{fault}");

    let source = host.options().mountable[0].clone();
    let wrong = [
        (source.clone(), "/etc", Kind::Invalid),
        (source, "/workspace/../etc", Kind::Invalid),
        ("/root".into(), "/mnt/root", Kind::Denied),
    ];
    for (source, target, kind) in wrong {
        let mounts = vec![Mount { source, target: target.into(), read_only: true }];
        let fault = backend.bind(place.id, &Binding { mounts, ..Default::default() }).await.unwrap_err();
        assert_eq!((fault.kind(), fault.way_out().is_some()), (kind, true), "{target}: {fault}");
    }
}
