//! How sandboxes and what runs in them end, and what can be known of it afterwards.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use cubicle_backend::{Backend, State};
use cubicle_guest::journal::{Kind as Record, Reader};
use cubicle_model::receipt::Cgroups;
use cubicle_model::{ExecId, ExecSpec, Exit, Lifetime, Limit, SandboxId};

use crate::harness::{Host, eventually, in_time, output, place, random, run, shell, skipped};

#[tokio::test]
async fn a_command_that_runs_out_of_memory_is_reported_as_that() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    if backend.facts().cgroups == Cgroups::None {
        return skipped("this host does not enforce memory limits");
    }
    let mut place = place(Lifetime::Bound);
    place.limits.memory = Limit::asked(32 << 20);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    // The last stage keeps all its input in memory; /dev/zero never ends a line.
    let outcome = run(&guest, "exec tail -n 1 /dev/zero").await.unwrap();
    assert_eq!(outcome.exit, Exit::Oom, "{}", String::from_utf8_lossy(&outcome.stderr));
    assert_eq!(output(&guest, "echo still here").await, "still here\n", "the sandbox died with its command");
}

#[tokio::test]
async fn a_durable_sandbox_goes_on_while_nobody_is_there_and_is_found_again() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let place = place(Lifetime::Durable);
    let exec_id = ExecId::from_random(random());
    {
        let maker = host.backend().await;
        maker.ensure(&place).await.unwrap();
        let script = "i=0; while [ ! -e /workspace/enough ]; do i=$((i+1)); echo $i; sleep 0.01; done";
        let spec = ExecSpec { exec_id: Some(exec_id), ..shell(script) };
        maker.guest(place.id).exec_in_background(&spec).await.unwrap();
    }
    let finder = host.backend().await;
    finder.gc().await.unwrap();
    let listed = finder.list().await.unwrap();
    assert_eq!(
        listed.iter().map(|seen| (seen.id, seen.state.clone())).collect::<Vec<_>>(),
        [(place.id, State::Ready)]
    );
    let guest = finder.guest(place.id);
    let before = guest.exec_status(exec_id).await.unwrap().output.stdout;
    let goes_on = eventually(async || guest.exec_status(exec_id).await.unwrap().output.stdout > before).await;
    assert!(goes_on, "the command stopped with its maker");
    output(&guest, "touch /workspace/enough").await;
    // Asking for the same id again does not run it again, it tells all that it printed.
    let spec = ExecSpec { exec_id: Some(exec_id), ..shell("echo again") };
    let outcome = in_time("the command", guest.run(&spec, Default::default())).await.unwrap();
    assert_eq!(outcome.exit, Exit::Code(0));
    let printed = String::from_utf8(outcome.stdout).unwrap();
    assert!(
        printed.lines().enumerate().all(|(index, line)| line == (index + 1).to_string()),
        "a gap: {printed}"
    );
    finder.destroy(place.id).await.unwrap();
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn the_journal_of_an_ended_durable_sandbox_is_there_until_it_is_destroyed() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Durable);
    backend.ensure(&place).await.unwrap();
    output(&backend.guest(place.id), "echo the last words").await;
    backend.guest(place.id).set_deadline(Duration::ZERO).await.unwrap();
    let ended = eventually(async || {
        backend.observe(place.id).await.unwrap().is_some_and(|seen| seen.state == State::Ended)
    });
    assert!(ended.await, "the sandbox lives on past its deadline");
    backend.gc().await.unwrap();
    assert_eq!(kept_output(&host.data(), place.id), b"the last words\n");
    // The kernel takes the lock away, which tells the end, a little before the socket.
    let refused = eventually(async || {
        let fault = backend.connect(place.id).await.err();
        fault.is_some_and(|fault| fault.kind() == cubicle_model::Kind::NotFound)
    });
    assert!(refused.await, "a sandbox that ended can still be reached");
    backend.destroy(place.id).await.unwrap();
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn a_sandbox_whose_pid_1_is_killed_has_ended() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    for lifetime in [Lifetime::Bound, Lifetime::Durable] {
        let place = place(lifetime);
        backend.ensure(&place).await.unwrap();
        kill_pid_1(&host.data(), place.id);
        let over = eventually(async || {
            backend.observe(place.id).await.unwrap().is_none_or(|seen| seen.state == State::Ended)
        });
        assert!(over.await, "{lifetime:?}");
        backend.destroy(place.id).await.unwrap();
    }
    host.is_clean_but_for(&[]).await;
}

fn kill_pid_1(data: &Path, id: SandboxId) {
    let slot = std::fs::File::open(data.join("sandboxes").join(id.to_string())).unwrap();
    let pid = cubicle_launcher::slots::living(&slot.as_fd().try_clone_to_owned().unwrap()).unwrap();
    rustix::process::kill_process(pid.expect("the sandbox lives"), rustix::process::Signal::KILL).unwrap();
}

/// Standard output as it stands in the file, without any help of the sandbox.
fn kept_output(data: &Path, id: SandboxId) -> Vec<u8> {
    let journal = std::fs::File::open(data.join("sandboxes").join(id.to_string()).join("journal")).unwrap();
    let entries = Reader::new(journal).map(|entry| entry.expect("the journal is whole"));
    entries.filter(|entry| entry.header.kind == Record::Stdout).flat_map(|entry| entry.payload).collect()
}
