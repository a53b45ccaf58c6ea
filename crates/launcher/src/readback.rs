//! What pid 1 sees of its own confinement, read from the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use cubicle_model::Kind;
use cubicle_model::receipt::{CapabilitySets, Credentials, MountSeen, Observed};

use crate::cradle::resource;
use crate::error::{Failed, Step};
use crate::plan::{SandboxPlan, WORKLOAD_ID};

pub(crate) fn observe(plan: &SandboxPlan) -> Result<Observed, Failed> {
    let status = read("/proc/self/status")?;
    // The workload is looked at in a process that gave up what every command gives up before it starts.
    let mut of_workload: Result<String, Failed> = Err(Failed::new(Kind::Internal, "no process looked"));
    cubicle_sys::clone::in_child(&mut || {
        let became = if plan.two_uids {
            cubicle_sys::credentials::become_user_in_this_thread(WORKLOAD_ID, WORKLOAD_ID)
        } else {
            Ok(())
        };
        of_workload =
            became.step(|| "become the workload's user".into()).and_then(|()| read("/proc/self/status"));
    })
    .step(|| "look as the workload".into())?;

    let rlimits = plan
        .rlimits
        .keys()
        .filter_map(|name| {
            Some((name.clone(), rustix::process::getrlimit(resource(name)?).maximum.unwrap_or(u64::MAX)))
        })
        .collect();
    Ok(Observed {
        namespaces: namespaces()?,
        workload: credentials(&of_workload?)?,
        init: credentials(&status)?,
        mounts: mounts(&read("/proc/self/mountinfo")?),
        interfaces: interfaces(&read("/proc/self/net/dev")?),
        rlimits,
    })
}

/// The namespaces of the calling process by name.
pub(crate) fn namespaces() -> Result<BTreeMap<String, u64>, Failed> {
    ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]
        .into_iter()
        .map(|name| {
            let link = fs::read_link(format!("/proc/self/ns/{name}"))
                .step(|| format!("read the {name} namespace"))?;
            let number =
                link.to_str().and_then(|link| link.split(['[', ']']).nth(1)).and_then(|n| n.parse().ok());
            let number = number.ok_or_else(|| {
                Failed::new(Kind::Internal, format!("the {name} namespace is called {}", link.display()))
            })?;
            Ok((name.to_owned(), number))
        })
        .collect()
}

fn read(path: &str) -> Result<String, Failed> {
    // Files of /proc have no size, so the standard library would begin with many small reads.
    let mut text = String::with_capacity(8192);
    fs::File::open(path)
        .and_then(|mut file| file.read_to_string(&mut text))
        .step(|| format!("read {path}"))?;
    Ok(text)
}

fn credentials(status: &str) -> Result<Credentials, Failed> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .ok_or_else(|| Failed::new(Kind::Internal, format!("/proc/self/status has no {name}")))
    };
    let number = |name: &str| -> Result<u32, Failed> {
        let text = field(name)?.split_whitespace().next().unwrap_or_default();
        text.parse()
            .map_err(|_| Failed::new(Kind::Internal, format!("{name} in /proc/self/status is '{text}'")))
    };
    let set = |name: &str| -> Result<u64, Failed> {
        let text = field(name)?;
        u64::from_str_radix(text, 16)
            .map_err(|_| Failed::new(Kind::Internal, format!("{name} in /proc/self/status is '{text}'")))
    };
    Ok(Credentials {
        uid: number("Uid")?,
        gid: number("Gid")?,
        supplementary_groups: field("Groups")?
            .split_whitespace()
            .filter_map(|group| group.parse().ok())
            .collect(),
        no_new_privs: number("NoNewPrivs")? == 1,
        seccomp_mode: number("Seccomp")?,
        seccomp_filters: number("Seccomp_filters")?,
        capabilities: CapabilitySets {
            inheritable: set("CapInh")?,
            permitted: set("CapPrm")?,
            effective: set("CapEff")?,
            bounding: set("CapBnd")?,
            ambient: set("CapAmb")?,
        },
    })
}

fn mounts(mountinfo: &str) -> Vec<MountSeen> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ').skip(4);
            let (target, options) = (before.next()?, before.next()?);
            let has = |wanted: &str| options.split(',').any(|option| option == wanted);
            Some(MountSeen {
                target: target.into(),
                filesystem: after.split(' ').next()?.into(),
                read_only: has("ro"),
                nosuid: has("nosuid"),
                nodev: has("nodev"),
            })
        })
        .collect()
}

fn interfaces(net_dev: &str) -> Vec<String> {
    net_dev.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_their_flags() {
        let text = "97 96 0:49 / / ro,nosuid,nodev,relatime - tmpfs tmpfs rw,size=16384k\n\
                    99 97 254:0 /usr /usr ro,nosuid,nodev master:1 - ext4 /dev/vda rw";
        let seen = mounts(text);
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[1].target.as_str(), seen[1].filesystem.as_str()), ("/usr", "ext4"));
        assert!(seen.iter().all(|mount| mount.read_only && mount.nosuid && mount.nodev));
    }

    #[test]
    fn interfaces_are_read_by_name() {
        let text = "Inter-|   Receive\n face |bytes\n    lo:       0       0\n  eth0: 1 2";
        assert_eq!(interfaces(text), ["lo", "eth0"]);
    }

    #[test]
    fn credentials_of_this_process_can_be_read() {
        let credentials = credentials(&read("/proc/self/status").unwrap()).unwrap();
        assert_eq!(credentials.uid, rustix::process::getuid().as_raw());
    }
}
