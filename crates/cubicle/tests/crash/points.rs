//! Which moments are tried.

use std::collections::BTreeMap;

use crate::tracer::{Point, Role};

/// Numbers of system calls.
pub(crate) mod calls {
    pub(crate) use nix::libc::{
        SYS_bind as BIND, SYS_clone3 as CLONE3, SYS_epoll_pwait as EPOLL_WAIT, SYS_kill as KILL,
        SYS_mkdirat as MKDIRAT, SYS_mount as MOUNT, SYS_openat as OPENAT,
        SYS_pidfd_send_signal as PIDFD_SEND_SIGNAL, SYS_pivot_root as PIVOT_ROOT, SYS_recvmsg as RECVMSG,
        SYS_seccomp as SECCOMP, SYS_sendmsg as SENDMSG, SYS_setns as SETNS, SYS_symlinkat as SYMLINKAT,
        SYS_unlinkat as UNLINKAT, SYS_unshare as UNSHARE,
    };
}

/// A step that has a name: the `nth` system call of a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) what: &'static str,
    pub(crate) role: Role,
    pub(crate) call: i64,
    pub(crate) nth: usize,
}

impl Named {
    pub(crate) fn point(&self) -> Point {
        Point { role: self.role, call: Some(self.call as u64), nth: self.nth }
    }
}

/// Points all over the lives of these roles, as many for each: one at random in every part of equal length, so that
/// no stretch is left out and two runs try different ones.
pub(crate) fn all_over(
    calls: &BTreeMap<Role, usize>,
    roles: &[Role],
    wanted: usize,
    random: &mut Random,
) -> Vec<Point> {
    let each = wanted.div_ceil(roles.len());
    let mut points = Vec::new();
    for role in roles {
        let calls = calls.get(role).copied().unwrap_or_else(|| panic!("no {role:?} was seen"));
        for part in 0..each {
            let (from, to) = (part * calls / each, (part + 1) * calls / each);
            let nth = 1 + from + random.below((to - from).max(1));
            points.push(Point { role: *role, call: None, nth: nth.min(calls) });
        }
    }
    points
}

/// Small, and the same again from the same seed (xorshift64*).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

#[test]
fn points_cover_every_stretch_and_stay_inside() {
    let calls = [(Role::Launcher, 100)].into();
    let points = all_over(&calls, &[Role::Launcher], 10, &mut Random::new(7));
    let parts: Vec<usize> = points.iter().map(|point| (point.nth - 1) / 10).collect();
    assert_eq!(parts, (0..10).collect::<Vec<_>>());
    let few = all_over(&[(Role::Launcher, 3)].into(), &[Role::Launcher], 10, &mut Random::new(7));
    assert!(few.iter().all(|point| (1..=3).contains(&point.nth)), "{few:?}");
}
