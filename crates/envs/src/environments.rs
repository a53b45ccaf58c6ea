//! All environments of a host: who wants which, and which are there.

mod held;
mod making;
mod ready;
mod removing;
mod state;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use cubicle_model::egress::WebAddress;
use cubicle_model::{Fault, Kind, Name, Timestamp};
use tokio::sync::OnceCell;

use crate::build::{Workshop, blocking, io_fault};
use crate::flight::Flights;
use crate::index::Source;
use crate::manifest::Layout;
use crate::names::Named;
use crate::resolve::Question;
use crate::sdist::SdistBuilder;
use crate::uv::Uv;
use crate::{
    AllowedIndex, EnvKey, EnvSettings, Index, Indexes, Interpreter, Requirements, ServiceUser, interpreter,
};
pub use held::InUse;
use held::Tree;
pub use ready::{Cache, Counts, Listed, Ready, Wanted};
use ready::{ready_from, requested_of};
use state::{Counters, State, is_fresh, lock};

/// How often something that was just made may be gone before it was taken.
const ATTEMPTS: usize = 3;

/// Environments of one directory. Several processes may share it.
#[derive(Debug)]
pub struct Environments {
    settings: EnvSettings,
    layout: Layout,
    user: Option<ServiceUser>,
    interpreter: OnceCell<Interpreter>,
    workshop: OnceCell<Workshop>,
    /// The one of uv, when there is one.
    built_in_index: OnceCell<Option<Index>>,
    builder: OnceLock<Arc<dyn SdistBuilder>>,
    state: Mutex<State>,
    flights: Flights<Question, EnvKey>,
    counts: Counters,
}

impl Environments {
    /// Finds what is there and removes what was left half-made. uv and Python are looked for when they are needed.
    pub async fn open(settings: EnvSettings) -> Result<Arc<Self>, Fault> {
        let layout = Layout { root: settings.root.clone() };
        let user = ServiceUser::of(&settings);
        let (place, now) = (layout.clone(), (settings.clock)());
        let lock_ttl = settings.lock_ttl;
        let state = blocking(move || {
            place.make().map_err(io_fault)?;
            if let Some(user) = user {
                std::os::unix::fs::chown(place.cache(), Some(user.uid), Some(user.gid)).map_err(io_fault)?;
            }
            Ok(State::load(&place, now, lock_ttl))
        })
        .await?;
        Ok(Arc::new(Self {
            settings,
            layout,
            user,
            interpreter: OnceCell::new(),
            workshop: OnceCell::new(),
            built_in_index: OnceCell::new(),
            builder: OnceLock::new(),
            state: Mutex::new(state),
            flights: Flights::default(),
            counts: Counters::default(),
        }))
    }

    /// From now on packages without wheels are built by this one. Without it they are refused.
    pub fn build_sdists_with(&self, builder: Arc<dyn SdistBuilder>) {
        // The first one stays.
        _ = self.builder.set(builder);
    }

    /// The interpreter of all environments.
    pub async fn interpreter(&self) -> Result<&Interpreter, Fault> {
        self.interpreter.get_or_try_init(|| interpreter::find(&self.settings, self.user)).await
    }

    /// Whether an index that a request names is one of the operator's, so that nothing has to be decided.
    pub async fn has_index(&self, address: &WebAddress) -> bool {
        let own = &self.settings.indexes;
        if own.include(address) {
            return true;
        }
        if own.default_index.is_some() || own.no_index {
            return false;
        }
        let ask = || async { self.workshop().await.ok()?.uv.built_in_index().await?.parse::<Index>().ok() };
        let built_in = self.built_in_index.get_or_init(ask).await.clone();
        Indexes { default_index: built_in, ..Indexes::default() }.include(address)
    }

    /// The environment with these requirements, made when it is not there. What was begun is done to its end, also when the
    /// caller does not wait for it.
    pub async fn ensure(self: &Arc<Self>, tenant: &Name, wanted: &Wanted) -> Result<Ready, Fault> {
        let requirements = Requirements::parse(&wanted.requirements, &self.settings.allowed_packages)?;
        self.ready(tenant, &requirements, wanted.name.as_ref(), wanted.index.clone(), true).await
    }

    /// The environment that the tenant calls so.
    pub fn find(&self, tenant: &Name, name: &Name) -> Option<Ready> {
        let now = (self.settings.clock)();
        let mut state = lock(&self.state);
        let named = state.names.get(tenant, name)?.clone();
        let tree = state.trees.get(&named.key)?.clone();
        let in_use = tree.take(now).ok()??;
        let requested = requested_of(&named.requirements);
        let given = Named { last_used_at: now, ..named };
        // It is known already, so that nothing is written.
        _ = state.names.give(tenant, name, given);
        drop(state);
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        Some(ready_from(&tree, name.clone(), &requested, Cache::Hit, Duration::ZERO, now, in_use))
    }

    pub fn list(&self, tenant: &Name) -> Vec<Listed> {
        let state = lock(&self.state);
        let listed = |(name, named): (&Name, &Named)| {
            let manifest = &state.trees.get(&named.key)?.manifest;
            Some(Listed {
                name: name.clone(),
                key: named.key.clone(),
                requirements: named.requirements.clone(),
                packages: manifest.packages.clone(),
                python_version: manifest.python.short_version().to_owned(),
                created_at: named.created_at,
                last_used_at: named.last_used_at,
                bytes: manifest.shape.bytes,
            })
        };
        state.names.of(tenant).filter_map(listed).collect()
    }

    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            hits: read(&self.counts.hits),
            misses: read(&self.counts.misses),
            resolutions: read(&self.counts.resolutions),
            builds: read(&self.counts.builds),
            failures: read(&self.counts.failures),
            evictions: read(&self.counts.evictions),
        }
    }

    /// How many there are, and how many bytes they have together.
    pub fn size(&self) -> (usize, u64) {
        let state = lock(&self.state);
        (state.trees.len(), state.trees.values().map(|tree| tree.manifest.shape.bytes).sum())
    }

    async fn ready(
        self: &Arc<Self>,
        tenant: &Name,
        requirements: &Requirements,
        name: Option<&Name>,
        index: Option<AllowedIndex>,
        may_build: bool,
    ) -> Result<Ready, Fault> {
        let python = self.interpreter().await?;
        let source = match index {
            Some(index) if !self.has_index(index.address()).await => Source::Request(index),
            _ => Source::Operator(self.settings.indexes.clone()),
        };
        let mut question = Question::new(python, &source, requirements);
        if matches!(source, Source::Request(_)) {
            question.tenant = Some(tenant.clone());
        }
        if let Some(ready) = self.hit(tenant, &question, requirements, name)? {
            return Ok(ready);
        }
        let began = Instant::now();
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        // Sources may be built, and what comes of that is one tenant's.
        let flight = question.of(tenant);
        for _ in 0..ATTEMPTS {
            let (own, source, tenant, question) =
                (self.clone(), source.clone(), tenant.clone(), question.clone());
            let wanted = requirements.clone();
            let make = move || async move {
                let made = own.make(&tenant, &question, &wanted, &source, may_build).await;
                if made.is_err() {
                    own.counts.failures.fetch_add(1, Ordering::Relaxed);
                }
                made
            };
            let key = self.flights.join(&flight, make).await?;
            let taken = self.take(&key)?;
            if let Some((tree, in_use)) = taken {
                let now = (self.settings.clock)();
                return self.named(
                    &tree,
                    requirements,
                    name,
                    &flight,
                    Cache::Miss,
                    began.elapsed(),
                    now,
                    in_use,
                );
            }
        }
        Err(Fault::new(Kind::Unavailable, "the environment was removed before it could be used")
            .hint("try again; if it stays so, raise sandbox.env_cache.max_disk_usage"))
    }

    /// What is there already, in memory: no file is looked at.
    fn hit(
        &self,
        tenant: &Name,
        question: &Question,
        requirements: &Requirements,
        name: Option<&Name>,
    ) -> Result<Option<Ready>, Fault> {
        let now = (self.settings.clock)();
        let own = question.of(tenant);
        let key = {
            let state = lock(&self.state);
            let known = state.answers.get(question).or_else(|| state.answers.get(&own));
            known
                .filter(|known| is_fresh(known.made_at, now, self.settings.lock_ttl))
                .map(|known| known.key.clone())
        };
        let Some(key) = key else { return Ok(None) };
        let Some((tree, in_use)) = self.take(&key)? else { return Ok(None) };
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        self.named(&tree, requirements, name, &own, Cache::Hit, Duration::ZERO, now, in_use).map(Some)
    }

    fn take(&self, key: &EnvKey) -> Result<Option<(Arc<Tree>, InUse)>, Fault> {
        let now = (self.settings.clock)();
        // Under this lock a tree is either there to be used, or already on its way out.
        let state = lock(&self.state);
        let Some(tree) = state.trees.get(key) else { return Ok(None) };
        Ok(tree.take(now)?.map(|in_use| (tree.clone(), in_use)))
    }

    #[expect(clippy::too_many_arguments, reason = "these are the parts of what is made ready")]
    fn named(
        &self,
        tree: &Arc<Tree>,
        requirements: &Requirements,
        name: Option<&Name>,
        question: &Question,
        cache: Cache,
        build: Duration,
        now: Timestamp,
        in_use: InUse,
    ) -> Result<Ready, Fault> {
        let name = match name {
            Some(name) => name.clone(),
            None => tree.manifest.key.nickname().parse().expect("letters, digits and a dash are a name"),
        };
        let tenant = question.tenant.as_ref().expect("it is the question of a tenant");
        let named = Named {
            key: tree.manifest.key.clone(),
            requirements: requirements.lines().to_vec(),
            created_at: now,
            last_used_at: now,
        };
        lock(&self.state).names.give(tenant, &name, named).map_err(io_fault)?;
        Ok(ready_from(tree, name, requirements.names(), cache, build, now, in_use))
    }

    async fn workshop(&self) -> Result<&Workshop, Fault> {
        let open = || async {
            let python = self.interpreter().await?.clone();
            let uv = Uv::find(&self.settings, &self.layout, self.user).await?;
            Ok(Workshop {
                layout: self.layout.clone(),
                uv,
                python,
                user: self.user,
                resolve_timeout: self.settings.resolve_timeout,
                build_timeout: self.settings.build_timeout,
                largest: self.settings.budget.bytes,
            })
        };
        self.workshop.get_or_try_init(open).await
    }
}
