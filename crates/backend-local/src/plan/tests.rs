//! Plans are values, so whole plans are compared with what was agreed on before.

use cubicle_model::{Isolation, Lifetime, LimitRequest, Limits, SandboxId, Trust};

use super::*;
use crate::host::Entry;

fn directory(name: &str) -> Entry {
    Entry { name: name.into(), kind: EntryKind::Directory }
}

fn link(name: &str, target: &str) -> Entry {
    Entry { name: name.into(), kind: EntryKind::Symlink(target.into()) }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A Debian of today: `/bin` and its like are links into `/usr`.
fn debian() -> HostRoot {
    HostRoot {
        base: "/".into(),
        entries: vec![
            link("bin", "usr/bin"),
            directory("boot"),
            directory("etc"),
            directory("home"),
            link("lib", "usr/lib"),
            link("lib64", "usr/lib64"),
            directory("opt"),
            directory("root"),
            link("sbin", "usr/sbin"),
            directory("srv"),
            directory("usr"),
            directory("var"),
        ],
        etc: strings(&[
            "alternatives",
            "fstab",
            "hostname",
            "ld.so.cache",
            "localtime",
            "machine-id",
            "passwd",
            "python3.11",
            "shadow",
            "ssh",
            "ssl",
            "sudoers",
        ]),
        proc: strings(&["acpi", "cmdline", "kcore", "keys", "meminfo", "sys", "sysrq-trigger", "version"]),
        devices: strings(&["full", "kvm", "null", "random", "tty", "urandom", "vda", "zero"]),
    }
}

/// A host from before the merge: `/bin` and its like are directories of their own.
fn unmerged() -> HostRoot {
    HostRoot {
        entries: vec![
            directory("bin"),
            directory("lib"),
            directory("sbin"),
            directory("tmp"),
            directory("usr"),
        ],
        etc: strings(&["ld.so.cache"]),
        ..debian()
    }
}

fn root_of_image() -> (Root, HostRoot) {
    let base = PathBuf::from("/srv/images/alpine");
    let host = HostRoot {
        base: base.clone(),
        entries: vec![
            directory("bin"),
            directory("etc"),
            directory("opt"),
            directory("proc"),
            directory("tmp"),
            directory("usr"),
            directory("workspace"),
        ],
        etc: strings(&["os-release", "passwd", "shadow", "ssl"]),
        ..debian()
    };
    (Root::Directory(base), host)
}

fn privileged() -> HostFacts {
    HostFacts {
        kernel: "6.1.0-18-amd64".into(),
        privileged: true,
        cgroups: Cgroups::V1,
        no_cgroups_because: None,
        service_uid: Some(0x7000_0000),
    }
}

fn unprivileged() -> HostFacts {
    HostFacts {
        kernel: "5.15.0".into(),
        privileged: false,
        cgroups: Cgroups::None,
        no_cgroups_because: Some("cgroup / is not delegated to this user".into()),
        service_uid: None,
    }
}

fn place(request: LimitRequest, workspace: Medium) -> Placement {
    Placement {
        id: SandboxId::from_random([7; 16]),
        lifetime: Lifetime::Durable,
        isolation: Isolation::Namespaces,
        trust: Trust::Medium,
        root: Root::Host,
        workspace,
        limits: Limits::parse(&request).unwrap(),
        env: [("TOKEN_FILE".to_owned(), "/workspace/token".to_owned())].into(),
        labels: Default::default(),
    }
}

fn plan(place: &Placement, facts: &HostFacts) -> Result<(SandboxPlan, Furnishing), Fault> {
    let host = debian();
    let template = plan_template(&place.root, &host, facts);
    plan_sandbox(place, &template, &host, facts, None)
}

#[test]
fn a_root_shows_of_a_debian_host_what_programs_need_and_nothing_else() {
    insta::assert_json_snapshot!(plan_template(&Root::Host, &debian(), &privileged()).plan);
}

#[test]
fn directories_that_are_not_merged_into_usr_are_shown_themselves() {
    insta::assert_json_snapshot!(plan_template(&Root::Host, &unmerged(), &privileged()).plan);
}

#[test]
fn a_root_from_a_directory_shows_all_of_it_but_what_is_made_anew() {
    let (root, host) = root_of_image();
    insta::assert_json_snapshot!(plan_template(&root, &host, &unprivileged()).plan);
}

#[test]
fn the_users_and_keys_of_the_host_are_in_no_root() {
    let (image, host) = root_of_image();
    for (root, host) in [(Root::Host, debian()), (Root::Host, unmerged()), (image, host)] {
        let plan = plan_template(&root, &host, &privileged()).plan;
        for step in &plan.steps {
            let from = match step {
                RootStep::Bind { from, .. } | RootStep::Copy { from, .. } => from.display().to_string(),
                _ => continue,
            };
            for secret in
                ["shadow", "passwd", "ssh", "sudoers", "machine-id", "ssl/private", "/root", "/home"]
            {
                assert!(!from.contains(secret), "{from} is shown");
            }
            assert!(!from.ends_with("/etc") && !from.ends_with("/ssl"), "{from} is shown whole");
        }
    }
}

#[test]
fn the_name_of_a_root_changes_with_what_it_is() {
    let name = |host: &HostRoot, facts: &HostFacts| plan_template(&Root::Host, host, facts).name;
    assert_eq!(name(&debian(), &privileged()), name(&debian(), &privileged()));
    assert_ne!(name(&debian(), &privileged()), name(&unmerged(), &privileged()));
    assert_ne!(name(&debian(), &privileged()), name(&debian(), &unprivileged()));
}

#[test]
fn a_sandbox_of_root_with_cgroups() {
    let request = LimitRequest { memory: Some(64 << 20), pids: Some(32), ..Default::default() };
    insta::assert_json_snapshot!(plan(&place(request, Medium::Memory), &privileged()).unwrap());
}

#[test]
fn a_sandbox_of_an_ordinary_user_without_cgroups() {
    let request = LimitRequest { pids: Some(32), ..Default::default() };
    insta::assert_json_snapshot!(plan(&place(request, Medium::Memory), &unprivileged()).unwrap());
}

#[test]
fn a_default_that_nobody_enforces_is_marked_with_the_reason() {
    let (plan, furnishing) =
        plan(&place(LimitRequest::default(), Medium::Directory("/srv/work".into())), &unprivileged())
            .unwrap();
    assert!(!furnishing.mounts.iter().any(|mount| matches!(mount, PrivateMount::Workspace { .. })));
    let unenforced: Vec<&str> = plan
        .limits
        .iter()
        .filter(|limit| matches!(&limit.by, Enforcer::Nobody { because } if !because.is_empty()))
        .map(|limit| limit.name.as_str())
        .collect();
    assert_eq!(unenforced, ["memory", "cpus", "workspace"]);
}

#[test]
fn a_limit_that_was_asked_for_and_that_nobody_enforces_is_refused_with_a_way_out() {
    let old = HostFacts { kernel: "5.10.0-28-amd64".into(), ..unprivileged() };
    let memory = LimitRequest { memory: Some(64 << 20), ..Default::default() };
    let cpus = LimitRequest { millicpus: Some(500), ..Default::default() };
    let pids = LimitRequest { pids: Some(64), ..Default::default() };
    let size = LimitRequest { workspace: Some(1 << 20), ..Default::default() };
    let shared = || Medium::Directory("/srv/work".into());
    let table = [
        (memory, Medium::Memory, unprivileged(), "the memory limit cannot be enforced here", "Delegate=yes"),
        (cpus, Medium::Memory, unprivileged(), "the cpus limit cannot be enforced here", "run as root"),
        // Older kernels count a user's processes in all namespaces together.
        (pids, Medium::Memory, old, "the pids limit cannot be enforced here", "run as root"),
        (size, shared(), privileged(), "the workspace limit cannot be enforced here: /srv/work", "in memory"),
    ];
    for (request, workspace, facts, refusal, way_out) in table {
        let fault = plan(&place(request, workspace), &facts).unwrap_err();
        assert_eq!(fault.kind(), Kind::Denied, "{fault}");
        assert!(fault.to_string().starts_with(refusal), "{fault}");
        assert!(fault.way_out().unwrap().contains(way_out), "{:?}", fault.way_out());
    }
}

#[test]
fn kernel_releases_are_compared_as_numbers() {
    for release in ["5.14", "5.14.0-rc1", "5.100", "6.1.0-18-amd64", "10.0"] {
        assert!(kernel_at_least(release, 5, 14), "{release}");
    }
    for release in ["5.13.19", "5.9", "4.19.0", "", "unknown"] {
        assert!(!kernel_at_least(release, 5, 14), "{release}");
    }
}
