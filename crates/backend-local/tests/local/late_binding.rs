//! A ready sandbox gets all that its user brings at once, and its receipt tells.

use cubicle_backend::Backend;
use cubicle_model::receipt::Cgroups;
use cubicle_model::{
    Binding, FileToWrite, Kind, Lifetime, LimitRequest, Listener, Mount, SecretFile, SecretsToGive,
};

use crate::harness::{Host, in_time, output, place};

#[tokio::test]
async fn a_task_has_its_own_directory_and_sees_what_is_shared() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let directory = |name: &str| {
        let path = host.options().mountable[0].join(name);
        std::fs::create_dir(&path).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
        }
        path
    };
    let (task, shared) = (directory("task"), directory("shared"));
    std::fs::write(shared.join("note"), "of everybody\n").unwrap();
    let guest = backend.guest(place.id);
    assert_eq!(output(&guest, "ls -A /task; touch /task/x 2>/dev/null || echo refused").await, "refused\n");
    let mounts = vec![
        Mount { source: task.clone(), target: "/task".into(), read_only: false },
        Mount { source: shared, target: "/workspace/shared".into(), read_only: true },
    ];
    in_time("bind", backend.bind(place.id, &Binding { mounts, ..Binding::default() })).await.unwrap();
    let script = "cat /workspace/shared/note; echo made > /task/file; touch /workspace/own; \
        touch /workspace/shared/x 2>/dev/null || echo refused";
    assert_eq!(output(&guest, script).await, "of everybody\nrefused\n");
    assert_eq!(std::fs::read_to_string(task.join("file")).unwrap(), "made\n");
}

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
        listeners: vec![Listener::tcp(3128)],
        secrets: secret("token", "from the vault\n"),
    };
    let bound = in_time("bind", backend.bind(place.id, &late)).await.unwrap();
    assert_eq!(bound.listeners.len(), 1);

    let mut receipt = backend.observe(place.id).await.unwrap().unwrap().receipt.expect("it has a receipt");
    let said = receipt.clone();
    receipt.amend(bound.amendment);
    assert_eq!(receipt, said, "what bind returns is what the sandbox keeps");
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
    let all = output(&guest, "sh in/hello.sh; cat /mnt/shared/note /var/secrets/token").await;
    assert_eq!(all, "hello Ada\nfrom the host\nfrom the vault\n");
    assert_eq!(output(&guest, "touch /mnt/shared/mine 2>/dev/null || echo refused").await, "refused\n");
    let deadline = guest.health().await.unwrap().deadline_seconds;
    assert!(deadline <= 600, "{deadline}");
    backend.destroy(place.id).await.unwrap();
    host.is_clean_but_for(&[]).await;
}

fn secret(name: &str, text: &str) -> SecretsToGive {
    let file = SecretFile { name: name.parse().unwrap(), bytes: text.into() };
    SecretsToGive { files: vec![file], ..Default::default() }
}

#[tokio::test]
async fn secret_files_are_read_only_or_the_receipt_says_why_not() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    assert_eq!(output(&guest, "ls -A /var/secrets").await, "");
    let give = |name: &str, text: &str| Binding { secrets: secret(name, text), ..Default::default() };
    let said = backend.bind(place.id, &give("token", "first")).await.unwrap().amendment.secrets;
    backend.bind(place.id, &give("other", "second")).await.unwrap();
    backend.bind(place.id, &give("token", "rotated")).await.unwrap();
    let receipt = backend.observe(place.id).await.unwrap().unwrap().receipt.unwrap();
    assert_eq!(receipt.secrets.files.iter().collect::<Vec<_>>(), ["other", "token"]);
    let look = "cat /var/secrets/token /var/secrets/other; stat -L -c ' %a' /var/secrets /var/secrets/token";
    assert_eq!(output(&guest, look).await, "rotatedsecond 755\n 444\n");

    let change = "for try in 'echo x > token' 'rm -f token' 'chmod 777 token' 'touch mine' 'mv token mine' \
                  'mv /run/secrets /run/mine' 'ln -sfn /tmp /var/secrets'; \
                  do (cd /var/secrets; eval \"$try\") 2>/dev/null && echo \"$try\"; done; true";
    if backend.facts().privileged {
        assert_eq!(output(&guest, change).await, "");
        assert_eq!(output(&guest, look).await, "rotatedsecond 755\n 444\n");
        assert_eq!((said.changeable_because, receipt.secrets.changeable_because), (None, None));
    } else {
        // Nothing keeps a user from changing what is its own. That is what the receipt says.
        assert_ne!(output(&guest, change).await, "");
        assert!(said.changeable_because.unwrap().contains("same user"));
        assert!(receipt.secrets.changeable_because.is_some());
    }
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

#[tokio::test]
async fn a_file_that_goes_into_a_mount_is_written_there_and_not_below_it() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let directory = host.data().canonicalize().unwrap().join("workspaces/given");
    std::fs::create_dir_all(&directory).unwrap();
    if backend.facts().privileged {
        std::os::unix::fs::chown(&directory, Some(1000), Some(1000)).unwrap();
    }
    for round in 0..10 {
        let place = place(Lifetime::Bound);
        backend.ensure(&place).await.unwrap();
        let text = format!("round {round}\n");
        let late = Binding {
            files: vec![
                FileToWrite { path: "/workspace/in/note".into(), bytes: text.clone().into(), mode: 0o600 },
                FileToWrite { path: "/home/agent/run".into(), bytes: b"echo ran".into(), mode: 0o755 },
            ],
            mounts: vec![Mount { source: directory.clone(), target: "/workspace".into(), read_only: false }],
            ..Default::default()
        };
        backend.bind(place.id, &late).await.unwrap();
        let guest = backend.guest(place.id);
        assert_eq!(output(&guest, "cat in/note; sh ~/run").await, format!("{text}ran\n"));
        assert_eq!(std::fs::read_to_string(directory.join("in/note")).unwrap(), text);
        backend.destroy(place.id).await.unwrap();
    }
}

#[tokio::test]
async fn files_too_large_for_one_request_arrive_whole() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let files = [("/workspace/large", 3 << 20), ("/tmp/small", 10)].map(|(path, length)| FileToWrite {
        path: path.into(),
        bytes: vec![b'x'; length],
        mode: 0o644,
    });
    backend.bind(place.id, &Binding { files: files.into(), ..Default::default() }).await.unwrap();
    assert_eq!(output(&backend.guest(place.id), "wc -c < large; wc -c < /tmp/small").await, "3145728\n10\n");
}
