//! Random sequences of what servers do, against a model of leases and sandboxes that fits in a page.

use std::collections::BTreeMap;

use cubicle_model::lease::{Admission, LeaseEnd, LeaseStatus};
use cubicle_model::{Fault, Kind, LeaseId, Quota, SandboxId, SandboxState, Timestamp};
use cubicle_store::{Acquire, Acquired, AfterLease, LeaseFilter, NewSandbox, Room, Store};
use proptest::prelude::*;

use crate::world::{Database, World, bits, in_time, page, room, target, user};

const ROOM: u64 = 4;
const QUEUE: u64 = 2;
const TENANTS: [&str; 2] = ["acme", "small"];
const SMALL_QUOTA: usize = 2;
const USERS: [&str; 2] = ["ada", "grace"];
const TEMPLATES: [&str; 2] = ["default", "other"];

#[derive(Debug, Clone)]
enum Step {
    Acquire {
        tenant: usize,
        user: usize,
        template: usize,
        may_wait: bool,
        must_be_new: bool,
    },
    /// The last request once more.
    Repeat,
    Renew(usize),
    End(usize, AfterLease),
    Pass(i64),
    Expire,
    Promote,
    Want {
        template: usize,
        count: usize,
    },
    Welcome(usize),
    GiveUp(usize),
    Retire(usize),
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop_oneof![
        Just(AfterLease::Destroy),
        Just(AfterLease::KeepForUser),
        Just(AfterLease::KeepForTenant)
    ];
    prop_oneof![
        6 => (0..2usize, 0..2usize, 0..2usize, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(tenant, user, template, may_wait, must_be_new)| Step::Acquire {
                tenant, user, template, may_wait, must_be_new
            }
        ),
        1 => Just(Step::Repeat),
        2 => any::<usize>().prop_map(Step::Renew),
        4 => (any::<usize>(), after).prop_map(|(which, after)| Step::End(which, after)),
        2 => (1..50i64).prop_map(Step::Pass),
        1 => Just(Step::Expire),
        2 => Just(Step::Promote),
        2 => (0..2usize, 1..3usize).prop_map(|(template, count)| Step::Want { template, count }),
        6 => any::<usize>().prop_map(Step::Welcome),
        1 => any::<usize>().prop_map(Step::GiveUp),
        1 => any::<usize>().prop_map(Step::Retire),
        6 => any::<usize>().prop_map(Step::Forget),
    ]
}

#[derive(Debug, Clone)]
struct Lease {
    tenant: usize,
    user: usize,
    template: usize,
    status: LeaseStatus,
    sandbox: Option<SandboxId>,
    expires_at: Timestamp,
}

#[derive(Debug, Clone)]
struct Sandbox {
    template: usize,
    state: SandboxState,
    /// Whose it is, or whom it waits for.
    tenant: Option<usize>,
    user: Option<usize>,
    lease: Option<LeaseId>,
}

#[derive(Debug, Default)]
struct Model {
    leases: BTreeMap<LeaseId, Lease>,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    last: Option<Acquire>,
}

impl Model {
    fn standing(&self) -> u64 {
        self.sandboxes.values().filter(|sandbox| sandbox.state != SandboxState::Gone).count() as u64
    }

    fn waiting(&self) -> u64 {
        self.leases.values().filter(|lease| lease.status == LeaseStatus::Queued).count() as u64
    }

    fn active_of(&self, tenant: usize) -> usize {
        let active = |lease: &&Lease| lease.status == LeaseStatus::Active && lease.tenant == tenant;
        self.leases.values().filter(active).count()
    }

    fn may_have(&self, sandbox: &Sandbox, tenant: usize, user: usize, template: usize) -> bool {
        sandbox.state == SandboxState::Idle
            && sandbox.template == template
            && sandbox
                .tenant
                .is_none_or(|owner| owner == tenant && sandbox.user.is_none_or(|one| one == user))
    }

    fn ready(&self, tenant: usize, user: usize, template: usize) -> bool {
        self.sandboxes.values().any(|sandbox| self.may_have(sandbox, tenant, user, template))
    }

    /// Whether something idle can make room for what none of the idle ones can be.
    fn spare(&self) -> bool {
        self.sandboxes.values().any(|sandbox| sandbox.state == SandboxState::Idle)
    }

    fn evict(&mut self, id: SandboxId) {
        let evicted = self.sandboxes.get_mut(&id).unwrap();
        assert_eq!(evicted.state, SandboxState::Idle);
        evicted.state = SandboxState::Teardown;
    }

    /// A lease got a sandbox: a ready one that it may have, or a new one.
    fn place(&mut self, id: LeaseId, sandbox: &cubicle_model::Sandbox) {
        let Lease { tenant, user, template, .. } = self.leases[&id];
        let now = Sandbox {
            template,
            state: sandbox.state,
            tenant: Some(tenant),
            user: Some(user),
            lease: Some(id),
        };
        if let Some(before) = self.sandboxes.insert(sandbox.id, now) {
            assert!(self.may_have(&before, tenant, user, template), "{before:?} is not for {id}");
            assert_eq!(sandbox.state, SandboxState::Leased);
        } else {
            assert_eq!(sandbox.state, SandboxState::Creating);
        }
        self.leases.get_mut(&id).unwrap().sandbox = Some(sandbox.id);
    }

    fn end(&mut self, id: LeaseId, status: LeaseStatus, after: AfterLease) {
        let lease = self.leases.get_mut(&id).unwrap();
        lease.status = status;
        let Some(sandbox) = lease.sandbox.and_then(|id| self.sandboxes.get_mut(&id)) else { return };
        if after == AfterLease::Destroy || sandbox.state == SandboxState::Creating {
            sandbox.state = SandboxState::Teardown;
        } else {
            sandbox.state = SandboxState::Idle;
            sandbox.lease = None;
            if after == AfterLease::KeepForTenant {
                sandbox.user = None;
            }
        }
    }
}

fn pick<K, V>(map: &BTreeMap<K, V>, which: usize) -> Option<(&K, &V)> {
    (!map.is_empty()).then(|| map.iter().nth(which % map.len())).flatten()
}

struct Run {
    world: World,
    model: Model,
}

impl Run {
    fn room(&self) -> Room {
        Room { longest_queue: QUEUE, ..room(ROOM) }
    }

    async fn step(&mut self, step: Step) {
        let store = self.world.store.clone();
        match step {
            Step::Acquire { tenant, user: who, template, may_wait, must_be_new } => {
                let ask = Acquire {
                    user: user(USERS[who]),
                    target: target(TEMPLATES[template]),
                    may_wait,
                    must_be_new,
                    room: self.room(),
                    ..self.world.ask(TENANTS[tenant])
                };
                self.acquire(ask, tenant, who, template).await;
            }
            Step::Repeat => {
                let Some(last) = self.model.last.clone() else { return };
                let again = Acquire { lease: LeaseId::from_random(bits()), ..last.clone() };
                match self.world.acquire(again).await {
                    Acquired::Repeated { lease } => assert_eq!(lease.id, last.lease),
                    other => panic!("not repeated: {other:?}"),
                }
            }
            Step::Renew(which) => {
                let Some((&id, lease)) = pick(&self.model.leases, which) else { return };
                let in_time = !lease.status.has_ended() && self.world.now() < lease.expires_at;
                let outcome = store.renew(self.world.context(), id).await;
                assert_eq!(outcome.is_ok(), in_time);
                if let Ok(renewed) = outcome {
                    self.model.leases.get_mut(&id).unwrap().expires_at = renewed.expires_at;
                }
            }
            Step::End(which, after) => {
                let Some((&id, lease)) = pick(&self.model.leases, which) else { return };
                let just_now = !lease.status.has_ended();
                let ended =
                    store.end_lease(self.world.context(), id, LeaseEnd::Released, after).await.unwrap();
                assert_eq!(ended.just_now, just_now);
                if just_now {
                    self.model.end(id, LeaseStatus::Released, after);
                }
            }
            Step::Pass(seconds) => self.world.pass(seconds),
            Step::Expire => {
                let now = self.world.now();
                let is_over = |lease: &Lease| !lease.status.has_ended() && lease.expires_at <= now;
                let over: Vec<LeaseId> =
                    self.model.leases.iter().filter(|(_, lease)| is_over(lease)).map(|(id, _)| *id).collect();
                let ended = store.expire_leases(self.world.context(), 100).await.unwrap();
                let mut ids: Vec<_> = ended.iter().map(|one| one.lease.id).collect();
                ids.sort();
                assert_eq!(ids, over);
                for id in over {
                    self.model.end(id, LeaseStatus::Expired, AfterLease::Destroy);
                }
            }
            Step::Promote => self.promote().await,
            Step::Want { template, count } => {
                let wanted: Vec<_> = (0..count)
                    .map(|_| NewSandbox {
                        id: SandboxId::from_random(bits()),
                        target: target(TEMPLATES[template]),
                    })
                    .collect();
                let fitting = ROOM.saturating_sub(self.model.standing() + self.model.waiting());
                let made = store.want_sandboxes(self.world.context(), wanted, ROOM).await.unwrap();
                assert_eq!(made.len() as u64, fitting.min(count as u64));
                for one in made {
                    let state = SandboxState::Creating;
                    let sandbox = Sandbox { template, state, tenant: None, user: None, lease: None };
                    self.model.sandboxes.insert(one.id, sandbox);
                }
            }
            Step::Welcome(which) => {
                let outcome = self.change(which, async |store: Store, context, id, generation| {
                    store.welcome(context, id, generation).await.map(drop)
                });
                let Some((id, outcome)) = outcome.await else { return };
                let sandbox = self.model.sandboxes.get_mut(&id).unwrap();
                allowed(&outcome, sandbox.state == SandboxState::Creating);
                if outcome.is_ok() {
                    let leased = sandbox.lease.is_some();
                    sandbox.state = if leased { SandboxState::Leased } else { SandboxState::Idle };
                }
            }
            Step::GiveUp(which) => {
                let outcome = self.change(which, async |store: Store, context, id, generation| {
                    store.give_up(context, id, generation, LeaseEnd::SandboxEnded, "x".into()).await.map(drop)
                });
                let Some((id, outcome)) = outcome.await else { return };
                let sandbox = self.model.sandboxes.get_mut(&id).unwrap();
                allowed(&outcome, !matches!(sandbox.state, SandboxState::Teardown | SandboxState::Gone));
                if outcome.is_ok() {
                    sandbox.state = SandboxState::Teardown;
                    if let Some(lease) = sandbox.lease {
                        self.model.end(lease, LeaseStatus::Expired, AfterLease::Destroy);
                    }
                }
            }
            Step::Retire(which) => {
                let outcome = self.change(which, async |store: Store, context, id, generation| {
                    store.retire(context, id, generation, "x".into()).await
                });
                let Some((id, outcome)) = outcome.await else { return };
                let sandbox = self.model.sandboxes.get_mut(&id).unwrap();
                allowed(&outcome, sandbox.state == SandboxState::Idle);
                if outcome.is_ok() {
                    sandbox.state = SandboxState::Teardown;
                }
            }
            Step::Forget(which) => {
                let outcome = self.change(which, async |store: Store, context, id, generation| {
                    store.forget(context, id, generation).await
                });
                let Some((id, outcome)) = outcome.await else { return };
                let sandbox = self.model.sandboxes.get_mut(&id).unwrap();
                allowed(&outcome, sandbox.state == SandboxState::Teardown);
                if outcome.is_ok() {
                    sandbox.state = SandboxState::Gone;
                }
            }
        }
    }

    /// Changes one sandbox of which something is left, at the generation that it has.
    async fn change(
        &self,
        which: usize,
        change: impl AsyncFnOnce(Store, cubicle_store::Context, SandboxId, i64) -> Result<(), Fault>,
    ) -> Option<(SandboxId, Result<(), Fault>)> {
        let left: BTreeMap<_, _> =
            self.model.sandboxes.iter().filter(|(_, one)| one.state != SandboxState::Gone).collect();
        let (&&id, _) = pick(&left, which)?;
        let generation = self.world.store.sandbox(id).await.unwrap().unwrap().generation;
        Some((id, change(self.world.store.clone(), self.world.context(), id, generation).await))
    }

    async fn acquire(&mut self, ask: Acquire, tenant: usize, user: usize, template: usize) {
        let lease = |status, expires_at| Lease { tenant, user, template, status, sandbox: None, expires_at };
        let model = &mut self.model;
        let over_quota = tenant == 1 && model.active_of(tenant) >= SMALL_QUOTA;
        let warm = !ask.must_be_new && model.ready(tenant, user, template);
        let room = model.standing() < ROOM;
        let cold = model.waiting() == 0 && (room || model.spare());
        let waits = ask.may_wait && model.waiting() < QUEUE;
        let outcome = self.world.store.acquire(self.world.context(), ask.clone()).await.unwrap();
        match outcome {
            Acquired::OverQuota(_) => return assert!(over_quota),
            Acquired::Full { waiting } => {
                assert!(!over_quota && !warm && !cold && !waits);
                return assert_eq!(waiting, model.waiting());
            }
            Acquired::Repeated { lease } => panic!("{} is new", lease.id),
            Acquired::Waits { lease: got, position } => {
                assert!(!over_quota && !warm && !cold && waits);
                assert_eq!(position, model.waiting() + 1);
                model.leases.insert(got.id, lease(LeaseStatus::Queued, got.expires_at));
            }
            Acquired::Granted { lease: got, sandbox, evicted } => {
                assert!(!over_quota && (warm || cold));
                assert_eq!(got.admission == Admission::Warm, warm);
                assert_eq!(evicted.is_some(), !warm && !room);
                if let Some(id) = evicted {
                    model.evict(id);
                }
                model.leases.insert(got.id, lease(LeaseStatus::Active, got.expires_at));
                model.place(got.id, &sandbox);
            }
        }
        model.last = Some(ask);
    }

    async fn promote(&mut self) {
        let promoted = self.world.store.promote(self.world.context(), self.room()).await.unwrap();
        for one in promoted {
            let (standing, spare) = (self.model.standing(), self.model.spare());
            let lease = self.model.leases.get_mut(&one.lease.id).unwrap();
            assert_eq!(lease.status, LeaseStatus::Queued);
            assert!(self.world.now() < lease.expires_at);
            (lease.status, lease.expires_at) = (LeaseStatus::Active, one.lease.expires_at);
            if let Some(evicted) = one.evicted {
                assert!(standing >= ROOM && spare);
                self.model.evict(evicted);
            } else if one.sandbox.state == SandboxState::Creating {
                assert!(standing < ROOM);
            }
            self.model.place(one.lease.id, &one.sandbox);
        }
        assert!(self.model.active_of(1) <= SMALL_QUOTA);
        // Whoever still waits could not have been served.
        let now = self.world.now();
        for lease in self.model.leases.values().filter(|lease| lease.status == LeaseStatus::Queued) {
            let blocked = lease.tenant == 1 && self.model.active_of(1) >= SMALL_QUOTA;
            let placeable = self.model.standing() < ROOM || self.model.spare();
            assert!(blocked || lease.expires_at <= now || !placeable, "{lease:?} could have been served");
        }
    }

    /// What the store holds is what the model holds.
    async fn compare(&self) {
        let store = &self.world.store;
        let kept = store.leases(LeaseFilter::default(), page(1000)).await.unwrap();
        assert_eq!(kept.len(), self.model.leases.len());
        for lease in kept {
            let model = &self.model.leases[&lease.id];
            assert_eq!((lease.status, lease.sandbox), (model.status, model.sandbox));
            assert_eq!(lease.expires_at, model.expires_at);
        }
        let kept = self.world.all_sandboxes().await;
        assert_eq!(kept.len(), self.model.sandboxes.len());
        let mut living = 0;
        for sandbox in kept {
            let model = &self.model.sandboxes[&sandbox.id];
            assert_eq!(sandbox.state, model.state, "{}", sandbox.id);
            let owner = model.user.map(|index| user(USERS[index]));
            assert_eq!((sandbox.lease, sandbox.user), (model.lease, owner));
            living += u64::from(!matches!(sandbox.state, SandboxState::Teardown | SandboxState::Gone));
        }
        assert!(living <= ROOM);
        let active = self.model.active_of(0) + self.model.active_of(1);
        assert_eq!(store.count_leases(self.world.node).await.unwrap(), (active as u64, self.model.waiting()));
    }
}

fn allowed(outcome: &Result<(), Fault>, expected: bool) {
    match outcome {
        Ok(()) => assert!(expected),
        Err(fault) => assert!(!expected && fault.kind() == Kind::Conflict, "{fault:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_servers_do_in_a_row_the_store_does_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let directory = tempfile::tempdir().unwrap();
        let at = Database::Sqlite(directory.path().join("cubicle.db"));
        let store = at.open().unwrap();
        in_time(async {
            let world = World::new(at, store).await;
            let quota = Quota { leases: Some(SMALL_QUOTA as u64), ..Quota::default() };
            world.tenant(TENANTS[1], quota, 1).await;
            let mut run = Run { world, model: Model::default() };
            for step in steps {
                run.step(step).await;
                run.compare().await;
            }
        });
    }
}
