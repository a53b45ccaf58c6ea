//! The isolation receipt: what was promised, what was read back inside the sandbox, and what an attacker's attempts
//! came to. A sandbox whose receipt has a contradiction is destroyed, not handed out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Isolation, SandboxId, SecretsToGive};

/// Stored with the sandbox and printable as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub version: u32,
    pub sandbox: SandboxId,
    pub isolation: Isolation,
    pub host: Host,
    pub limits: Vec<LimitInForce>,
    pub observed: Observed,
    /// Named where the last resort was used; most sandboxes have none.
    #[serde(default, skip_serializing_if = "SecretsInside::is_empty")]
    pub secrets: SecretsInside,
    /// Made once per template, boot and binary; absent in the sandbox in which they are made.
    pub attempts: Option<Attempts>,
    /// Empty in every sandbox that is handed out.
    pub contradictions: Vec<String>,
}

pub const VERSION: u32 = 1;

/// What binding changed about a sandbox, in the words of its receipt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amendment {
    pub limits: Vec<LimitInForce>,
    pub mounts: Vec<MountSeen>,
    #[serde(default, skip_serializing_if = "SecretsInside::is_empty")]
    pub secrets: SecretsInside,
}

impl Amendment {
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.mounts.is_empty() && self.secrets.is_empty()
    }
}

/// Secrets that were put into a sandbox, by name and never by value. Whoever runs inside can read them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SecretsInside {
    /// Files in `/var/secrets`.
    pub files: BTreeSet<String>,
    /// Variables in the environment of execs.
    pub env: BTreeSet<String>,
    /// Why the workload can change the files, where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changeable_because: Option<String>,
}

impl SecretsInside {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.env.is_empty()
    }

    /// What a receipt says after these were given.
    pub fn of(given: &SecretsToGive, two_uids: bool) -> Self {
        let changeable = !two_uids && !given.files.is_empty();
        Self {
            files: given.files.iter().map(|file| file.name.to_string()).collect(),
            env: given.env.keys().cloned().collect(),
            changeable_because: changeable.then(|| "pid 1 and the workload are the same user here".into()),
        }
    }
}

impl Receipt {
    /// A limit takes the place of the one it changes, a mount that of the one it covers; secrets are there for good.
    pub fn amend(&mut self, amendment: Amendment) {
        let Amendment { limits, mounts, secrets } = amendment;
        self.limits.retain(|before| limits.iter().all(|limit| limit.name != before.name));
        self.limits.extend(limits);
        self.observed.mounts.retain(|before| mounts.iter().all(|mount| mount.target != before.target));
        self.observed.mounts.extend(mounts);
        self.secrets.files.extend(secrets.files);
        self.secrets.env.extend(secrets.env);
        self.secrets.changeable_because =
            secrets.changeable_because.or_else(|| self.secrets.changeable_because.take());
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub kernel: String,
    /// Whether the launcher is root on the host, or an ordinary user in a user namespace.
    pub privileged: bool,
    pub cgroups: Cgroups,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cgroups {
    V1,
    V2,
    None,
}

/// What the plan promises; `judge` compares it with what is seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Namespaces of the launcher by name. The sandbox's must all be others.
    pub outside_namespaces: BTreeMap<String, u64>,
    pub workload_uid: u32,
    pub workload_gid: u32,
    /// Whether pid 1 and the workload are different users.
    pub two_uids: bool,
    /// Every mount the sandbox may have, by target.
    pub mounts: BTreeMap<String, MountRule>,
    /// Highest allowed value of each rlimit that is set.
    pub rlimits: BTreeMap<String, u64>,
}

impl Expected {
    /// Whether a target lies below a read-only tree of the host.
    fn shows(&self, target: &str) -> bool {
        std::path::Path::new(target).ancestors().skip(1).any(|above| {
            above.parent().is_some()
                && above.to_str().and_then(|above| self.mounts.get(above)) == Some(&MountRule::ReadOnly)
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountRule {
    ReadOnly,
    Writable,
}

/// What was read back inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    pub namespaces: BTreeMap<String, u64>,
    /// Of a process that went through exactly what a command goes through before it starts.
    pub workload: Credentials,
    pub init: Credentials,
    pub mounts: Vec<MountSeen>,
    pub interfaces: Vec<String>,
    pub rlimits: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub supplementary_groups: Vec<u32>,
    pub no_new_privs: bool,
    /// 2 is a filter.
    pub seccomp_mode: u32,
    pub seccomp_filters: u32,
    #[serde(with = "hex_sets")]
    pub capabilities: CapabilitySets,
}

/// The five capability sets as bit masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CapabilitySets {
    pub inheritable: u64,
    pub permitted: u64,
    pub effective: u64,
    pub bounding: u64,
    pub ambient: u64,
}

impl CapabilitySets {
    pub fn union(self) -> u64 {
        self.inheritable | self.permitted | self.effective | self.bounding | self.ambient
    }
}

/// Capabilities that pid 1 keeps where it is another user than the workload.
pub const INIT_CAPABILITIES: u64 = 1 << 5 /* KILL */ | 1 << 6 /* SETGID */ | 1 << 7 /* SETUID */;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSeen {
    pub target: String,
    pub filesystem: String,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitInForce {
    pub name: String,
    pub value: u64,
    pub asked: bool,
    pub enforced: Enforcement,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// By what, with the value read back after it was set.
    By { what: String, read_back: u64 },
    /// A default that this host cannot enforce, with the reason. One that was asked for is refused instead.
    No { because: String },
}

/// What an attacker inside would try first, each tried for real.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// Template, boot and binary that the attempts were made with.
    pub made_with: String,
    /// Empty in the sandbox's own record: outcomes are the same for all and kept once.
    pub tried: Vec<Attempt>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub name: String,
    pub failed: bool,
    /// How it failed (an errno's name) or what it got.
    pub outcome: String,
}

impl Attempts {
    pub fn successes(&self) -> impl Iterator<Item = &Attempt> {
        self.tried.iter().filter(|attempt| !attempt.failed)
    }
}

/// Every way in which what is seen contradicts what was promised.
pub fn judge(expected: &Expected, seen: &Observed) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |holds: bool, say: &dyn Fn() -> String| {
        if !holds {
            found.push(say());
        }
    };

    for (name, outside) in &expected.outside_namespaces {
        let inside = seen.namespaces.get(name);
        check(inside.is_some_and(|inside| inside != outside), &|| {
            format!("the {name} namespace is shared with the host")
        });
    }

    let workload = &seen.workload;
    check(workload.uid == expected.workload_uid, &|| format!("commands run as uid {}", workload.uid));
    check(workload.gid == expected.workload_gid, &|| format!("commands run as gid {}", workload.gid));
    check(workload.no_new_privs, &|| "no_new_privs is not set".into());
    check(workload.seccomp_mode == 2, &|| "commands run without a seccomp filter".into());
    check(workload.capabilities.union() == 0, &|| {
        format!("commands have capabilities {:?}", workload.capabilities)
    });

    let init = &seen.init;
    let kept = if expected.two_uids { INIT_CAPABILITIES } else { 0 };
    check(init.capabilities.union() & !kept == 0, &|| {
        format!("pid 1 has capabilities {:?}", init.capabilities)
    });
    check((init.uid != workload.uid) == expected.two_uids, &|| {
        "pid 1 is the same user as the commands".into()
    });
    check(init.seccomp_mode == 2, &|| "pid 1 runs without a seccomp filter".into());

    for mount in &seen.mounts {
        match expected.mounts.get(&mount.target) {
            // What is mounted below a tree of the host comes along with it, and must be as read-only as the tree.
            None if mount.read_only && expected.shows(&mount.target) => {}
            None => check(false, &|| format!("{} is mounted but not planned", mount.target)),
            Some(MountRule::ReadOnly) => check(mount.read_only, &|| format!("{} is writable", mount.target)),
            Some(MountRule::Writable) => {
                check(!mount.read_only, &|| format!("{} is read-only", mount.target));
            }
        }
        check(mount.nosuid, &|| format!("{} honours setuid programs", mount.target));
    }
    for target in expected.mounts.keys() {
        check(seen.mounts.iter().any(|mount| &mount.target == target), &|| {
            format!("{target} is not mounted")
        });
    }

    check(seen.interfaces == ["lo"], &|| format!("network interfaces {:?}", seen.interfaces));
    for (name, highest) in &expected.rlimits {
        let value = seen.rlimits.get(name);
        check(value.is_some_and(|value| value <= highest), &|| {
            format!("rlimit {name} is {value:?}, not {highest}")
        });
    }
    found
}

mod hex_sets {
    use super::CapabilitySets;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Hex {
        inheritable: String,
        permitted: String,
        effective: String,
        bounding: String,
        ambient: String,
    }

    pub(super) fn serialize<S: Serializer>(sets: &CapabilitySets, to: S) -> Result<S::Ok, S::Error> {
        let hex = |bits: u64| format!("{bits:x}");
        Hex {
            inheritable: hex(sets.inheritable),
            permitted: hex(sets.permitted),
            effective: hex(sets.effective),
            bounding: hex(sets.bounding),
            ambient: hex(sets.ambient),
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CapabilitySets, D::Error> {
        let hex = Hex::deserialize(from)?;
        let bits = |text: &str| u64::from_str_radix(text, 16).map_err(serde::de::Error::custom);
        Ok(CapabilitySets {
            inheritable: bits(&hex.inheritable)?,
            permitted: bits(&hex.permitted)?,
            effective: bits(&hex.effective)?,
            bounding: bits(&hex.bounding)?,
            ambient: bits(&hex.ambient)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(uid: u32, capabilities: u64) -> Credentials {
        Credentials {
            uid,
            gid: uid,
            supplementary_groups: vec![],
            no_new_privs: true,
            seccomp_mode: 2,
            seccomp_filters: 1,
            capabilities: CapabilitySets { permitted: capabilities, ..Default::default() },
        }
    }

    fn plan() -> Expected {
        Expected {
            outside_namespaces: [("net".to_owned(), 1)].into(),
            workload_uid: 1000,
            workload_gid: 1000,
            two_uids: true,
            mounts: [("/".to_owned(), MountRule::ReadOnly), ("/tmp".to_owned(), MountRule::Writable)].into(),
            rlimits: [("nofile".to_owned(), 1024)].into(),
        }
    }

    fn as_planned() -> Observed {
        let mount = |target: &str, read_only| MountSeen {
            target: target.into(),
            filesystem: "tmpfs".into(),
            read_only,
            nosuid: true,
            nodev: true,
        };
        Observed {
            namespaces: [("net".to_owned(), 2)].into(),
            workload: credentials(1000, 0),
            init: credentials(0, INIT_CAPABILITIES),
            mounts: vec![mount("/", true), mount("/tmp", false)],
            interfaces: vec!["lo".into()],
            rlimits: [("nofile".to_owned(), 1024)].into(),
        }
    }

    #[test]
    fn what_is_as_planned_has_no_contradiction() {
        assert_eq!(judge(&plan(), &as_planned()), Vec::<String>::new());
    }

    #[test]
    fn every_deviation_is_named() {
        type Change = fn(&mut Observed);
        let table: [(Change, &str); 12] = [
            (|o| _ = o.namespaces.insert("net".into(), 1), "the net namespace is shared with the host"),
            (|o| o.workload.uid = 0, "commands run as uid 0"),
            (|o| o.workload.no_new_privs = false, "no_new_privs is not set"),
            (|o| o.workload.seccomp_mode = 0, "commands run without a seccomp filter"),
            (|o| o.workload.capabilities.bounding = 1, "commands have capabilities"),
            (|o| o.init.capabilities.effective = 1 << 21, "pid 1 has capabilities"),
            (|o| o.mounts[0].read_only = false, "/ is writable"),
            (|o| o.mounts[0].nosuid = false, "/ honours setuid programs"),
            (|o| o.mounts[1].target = "/host".into(), "/host is mounted but not planned"),
            (|o| _ = o.mounts.pop(), "/tmp is not mounted"),
            (|o| o.interfaces.push("eth0".into()), "network interfaces"),
            (|o| _ = o.rlimits.insert("nofile".into(), 4096), "rlimit nofile"),
        ];
        for (change, expected) in table {
            let mut seen = as_planned();
            change(&mut seen);
            let found = judge(&plan(), &seen);
            assert!(found.iter().any(|say| say.contains(expected)), "{expected}: {found:?}");
        }
    }

    #[test]
    fn a_mount_below_a_tree_of_the_host_is_fine_as_long_as_it_is_read_only() {
        let mut plan = plan();
        plan.mounts.insert("/usr".into(), MountRule::ReadOnly);
        let below = |read_only| MountSeen {
            target: "/usr/local".into(),
            read_only,
            ..as_planned().mounts[0].clone()
        };
        let usr = MountSeen { target: "/usr".into(), ..as_planned().mounts[0].clone() };
        for (read_only, contradictions) in [(true, 0), (false, 1)] {
            let mut seen = as_planned();
            seen.mounts.extend([usr.clone(), below(read_only)]);
            assert_eq!(judge(&plan, &seen).len(), contradictions, "{:?}", judge(&plan, &seen));
        }
    }

    #[test]
    fn capability_sets_survive_json() {
        let before = credentials(0, INIT_CAPABILITIES);
        let json = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Credentials>(&json).unwrap(), before);
    }
}
