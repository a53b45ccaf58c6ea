//! The receipt of a fake sandbox: everything as promised, because nothing is there.

use std::collections::BTreeMap;

use cubicle_model::receipt::{
    CapabilitySets, Cgroups, Credentials, Enforcement, Host, LimitInForce, Observed, SecretsInside, VERSION,
};
use cubicle_model::{Limit, Limits, Placement, Receipt};

pub(super) fn limits_by_name(limits: &Limits) -> [(&'static str, Limit); 8] {
    [
        ("memory", limits.memory),
        ("millicpus", limits.millicpus),
        ("pids", limits.pids),
        ("workspace", limits.workspace),
        ("tmp", limits.tmp),
        ("open_files", limits.open_files),
        ("wall_seconds", limits.wall_seconds),
        ("journal", limits.journal),
    ]
}

pub(super) fn receipt(place: &Placement, limits: &Limits) -> Receipt {
    let nobody = |uid| Credentials {
        uid,
        gid: uid,
        supplementary_groups: vec![],
        no_new_privs: true,
        seccomp_mode: 2,
        seccomp_filters: 1,
        capabilities: CapabilitySets::default(),
    };
    let in_force = |(name, limit): (&str, Limit)| LimitInForce {
        name: name.into(),
        value: limit.value,
        asked: limit.asked,
        enforced: Enforcement::By { what: "the fake host".into(), read_back: limit.value },
    };
    Receipt {
        version: VERSION,
        sandbox: place.id,
        isolation: place.isolation,
        host: Host { kernel: "fake".into(), privileged: false, cgroups: Cgroups::None },
        limits: limits_by_name(limits).map(in_force).into(),
        observed: Observed {
            namespaces: BTreeMap::new(),
            workload: nobody(1000),
            init: nobody(0),
            mounts: vec![],
            interfaces: vec!["lo".into()],
            rlimits: BTreeMap::new(),
        },
        secrets: SecretsInside::default(),
        attempts: None,
        contradictions: vec![],
    }
}
