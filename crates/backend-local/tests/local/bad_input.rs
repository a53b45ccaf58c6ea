//! What cannot be had is refused with a way out, nothing hangs, and nothing is left behind.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Options};
use cubicle_guest::client::{Event, OutputLimits};
use cubicle_model::receipt::Cgroups;
use cubicle_model::{Command, ExecSpec, Exit, Kind, Lifetime, Limit, LimitRequest, Limits};

use crate::harness::{Host, in_time, output, place, run, shell, skipped};

#[tokio::test]
async fn a_memory_limit_that_pid_1_does_not_fit_in_is_an_error_with_a_way_out() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    if backend.facts().cgroups == Cgroups::None {
        return skipped("this host does not enforce memory limits");
    }
    for bytes in [4096, 64 << 10, 512 << 10] {
        let mut place = place(Lifetime::Bound);
        place.limits.memory = Limit::asked(bytes);
        match in_time("a sandbox without memory", backend.ensure(&place)).await {
            Err(fault) => assert!(fault.way_out().is_some(), "{bytes}: {fault}"),
            // What the kernel lets it have must then be enough to be of use.
            Ok(_) => {
                let _ = run(&backend.guest(place.id), "true").await;
                backend.destroy(place.id).await.unwrap();
            }
        }
    }
    let refusal = Limits::parse(&LimitRequest { memory: Some(64 << 10), ..Default::default() }).unwrap_err();
    assert!(refusal.to_string().contains("least possible"), "{refusal}");
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn a_sandbox_with_the_least_memory_runs_a_command() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    if backend.facts().cgroups == Cgroups::None {
        return skipped("this host does not enforce memory limits");
    }
    let mut place = place(Lifetime::Bound);
    place.limits.memory = Limit::asked(cubicle_model::limits::LEAST_MEMORY);
    backend.ensure(&place).await.unwrap();
    assert_eq!(output(&backend.guest(place.id), "echo fits").await, "fits\n");
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_written_is_refused_with_a_way_out() {
    for unwritable in ["/proc/cubicle", "/dev/null/cubicle", "/sys/cubicle"] {
        let fault = LocalBackend::open(Options::new(unwritable)).await.unwrap_err();
        assert_eq!(fault.kind(), Kind::Denied, "{unwritable}: {fault}");
        assert!(fault.to_string().contains(unwritable), "{fault}");
        assert!(fault.way_out().unwrap().contains("--data-dir"), "{fault}");
    }
}

#[tokio::test]
async fn a_timeout_of_nothing_is_refused_and_one_of_a_year_is_kept() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let mut place = place(Lifetime::Bound);
    let year = 365 * 24 * 3600;
    place.limits.wall_seconds = Limit::asked(year);
    let seen = backend.ensure(&place).await.unwrap();
    let receipt = seen.receipt.expect("a ready sandbox has a receipt");
    assert!(receipt.limits.iter().any(|limit| limit.name == "wall_seconds" && limit.value == year));

    let guest = backend.guest(place.id);
    for seconds in [0.0, -1.0] {
        let spec = ExecSpec { timeout_seconds: Some(seconds), ..shell("echo no") };
        let refused = in_time("a refusal", guest.run(&spec, OutputLimits::default())).await.unwrap_err();
        assert_eq!(cubicle_model::Fault::from(refused).kind(), Kind::Invalid, "{seconds}");
    }
    let spec = ExecSpec { timeout_seconds: Some(year as f64), ..shell("echo yes") };
    let outcome = in_time("a command", guest.run(&spec, OutputLimits::default())).await.unwrap();
    assert_eq!((outcome.exit, outcome.stdout.as_slice()), (Exit::Code(0), b"yes\n".as_slice()));

    let none = Limits::parse(&LimitRequest { wall_seconds: Some(0), ..Default::default() });
    assert!(none.unwrap_err().to_string().contains("wall time"));
}

#[tokio::test]
async fn an_isolation_that_is_not_there_is_refused_and_never_replaced_by_a_weaker_one() {
    let host = Host::new();
    let Ok(backend) = LocalBackend::open(host.options()).await else {
        return skipped("no launcher can be started here");
    };
    for isolation in [cubicle_model::Isolation::Gvisor, cubicle_model::Isolation::Landlock] {
        let mut place = place(Lifetime::Bound);
        place.isolation = isolation;
        let fault = backend.ensure(&place).await.unwrap_err();
        assert_eq!(fault.kind(), Kind::Denied);
        assert!(fault.to_string().contains(isolation.name()) && fault.way_out().is_some(), "{fault}");
        assert_eq!(backend.observe(place.id).await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_environment_that_is_too_large_is_refused() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let mut place = place(Lifetime::Bound);
    place.env.insert("LARGE".into(), "x".repeat(1 << 20));
    let fault = in_time("a refusal", backend.ensure(&place)).await.unwrap_err();
    assert_eq!(fault.kind(), Kind::Invalid, "{fault}");
    assert!(fault.way_out().is_some(), "{fault}");
    // The launcher that refused goes on.
    place.env.clear();
    backend.ensure(&place).await.unwrap();
    backend.destroy(place.id).await.unwrap();
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn a_full_disk_loses_output_and_says_so_but_nothing_hangs() {
    let Some(host) = Host::with_sandboxes().await else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can mount a file system that is soon full");
    }
    let Some(small) = SmallDisk::mount(host.data().with_file_name("small"), 1 << 20) else {
        return skipped("no tmpfs can be mounted here");
    };
    let backend = LocalBackend::open(Options::new(&small.0)).await.unwrap();
    let place = place(Lifetime::Bound);
    in_time("a sandbox on a small disk", backend.ensure(&place)).await.unwrap();
    let guest = backend.guest(place.id);
    let flood = ExecSpec::new(Command::Shell("head -c 4000000 /dev/zero; echo written >&2".into()));
    let outcome = in_time("a flood", guest.run(&flood, OutputLimits::default())).await.unwrap();
    assert_eq!(outcome.exit, Exit::Code(0));
    assert!(outcome.stdout_truncated, "4 MB were kept on a disk of 1 MB");
    assert_eq!(outcome.written.stdout, 4_000_000);

    let mut lost = 0;
    let mut records = guest.journal(0, false).await.unwrap();
    while let Some(frame) = in_time("the journal", records.next()).await.unwrap() {
        if let Event::Lost(bytes) = frame.event().unwrap() {
            lost += bytes.stdout;
        }
    }
    assert!(lost > 0, "the journal does not say what was lost");
    in_time("another command", guest.run(&shell("true"), OutputLimits::default()))
        .await
        .map(drop)
        .unwrap_or_default();
    in_time("destroy", backend.destroy(place.id)).await.unwrap();
    drop(backend);
    if let Some(instance) = cubicle_tests_leftovers::Instance::of(&small.0) {
        assert_eq!(
            instance.leftovers(&[], cubicle_tests_leftovers::Company::WithOthers),
            Vec::<String>::new()
        );
        instance.forget();
    }
}

/// A file system that is soon full.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, size: u64) -> Option<Self> {
        std::fs::DirBuilder::new().mode(0o755).create(&at).expect("the directory is ours");
        let options =
            std::ffi::CString::new(format!("size={size},mode=0755")).expect("a number has no zero byte");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &at, "tmpfs", flags, Some(options.as_c_str())).ok()?;
        Some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
