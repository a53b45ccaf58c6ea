//! All environments of a host: who wants which, and which are there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cubicle_model::egress::WebAddress;
use cubicle_model::{Fault, Kind, Name, Timestamp};
use tokio::sync::OnceCell;
use tracing::{info, warn};

use crate::build::{Order, Workshop, blocking, discard, io_fault};
use crate::files::{self, Locked};
use crate::flight::Flights;
use crate::index::Source;
use crate::lock::Lock;
use crate::manifest::{Layout, Manifest, PYTHON, TREE};
use crate::names::{Named, Names};
use crate::resolve::{Answer, Question, Unresolved};
use crate::sdist::{self, SdistBuilder, SdistJob};
use crate::trouble::Trouble;
use crate::uv::Uv;
use crate::{
    AllowedIndex, AllowedPackages, Candidate, EnvKey, EnvSettings, Interpreter, Requirements, ServiceUser,
    evict, interpreter, work,
};

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
    builder: OnceLock<Arc<dyn SdistBuilder>>,
    state: Mutex<State>,
    flights: Flights<Question, EnvKey>,
    counts: Counters,
}

/// What is known without looking at the disk.
#[derive(Debug)]
struct State {
    trees: HashMap<EnvKey, Arc<Tree>>,
    answers: HashMap<Question, Remembered>,
    names: Names,
    /// Trees that are mounted somewhere; nobody has said so yet when it is absent, and then nothing is removed.
    mounted: Option<HashSet<EnvKey>>,
}

#[derive(Debug, Clone)]
struct Remembered {
    key: EnvKey,
    made_at: Timestamp,
}

#[derive(Debug)]
struct Tree {
    manifest: Manifest,
    path: PathBuf,
    holding: PathBuf,
    /// In milliseconds since 1970.
    last_used: AtomicI64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    users: usize,
    /// Says to other processes that there are users.
    _lock: Option<Locked>,
}

/// What somebody wants.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// What the tenant calls it; else it is called by its key.
    pub name: Option<Name>,
    pub requirements: Vec<String>,
    /// Instead of the operator's indexes.
    pub index: Option<AllowedIndex>,
}

/// An environment that is there and stays for as long as `in_use` does.
#[derive(Debug, Clone)]
pub struct Ready {
    pub key: EnvKey,
    pub name: Name,
    /// The tree, on the host; to be mounted read-only.
    pub path: PathBuf,
    /// Where it must be mounted.
    pub target: String,
    /// Its interpreter, in the sandbox.
    pub python: String,
    /// What has to be mounted besides, when it is no interpreter of `/usr`.
    pub prefix: Option<crate::Prefix>,
    /// As in `pandas==2.2.0`.
    pub packages: Vec<String>,
    /// As in `3.12`.
    pub python_version: String,
    /// What can be imported of the packages that were asked for.
    pub modules: Vec<String>,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    pub cache: Cache,
    /// How long the caller waited for it to be made.
    pub build: Duration,
    /// Whether only its tenant may have it: something of it was built from source, or came from an index of the tenant's.
    pub is_private: bool,
    pub in_use: InUse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    Hit,
    Miss,
}

/// As long as one of these is there, so is the environment.
#[derive(Debug, Clone)]
pub struct InUse {
    _user: Arc<User>,
}

#[derive(Debug)]
struct User {
    tree: Arc<Tree>,
}

impl Drop for User {
    fn drop(&mut self) {
        let mut held = lock(&self.tree.held);
        held.users -= 1;
        if held.users == 0 {
            held._lock = None;
        }
    }
}

/// An environment as its tenant sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: Name,
    pub key: EnvKey,
    pub requirements: Vec<String>,
    pub packages: Vec<String>,
    pub python_version: String,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    pub bytes: u64,
}

/// What happened since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub resolutions: u64,
    pub builds: u64,
    pub failures: u64,
    pub evictions: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    resolutions: AtomicU64,
    builds: AtomicU64,
    failures: AtomicU64,
    evictions: AtomicU64,
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
    pub fn has_index(&self, address: &WebAddress) -> bool {
        self.settings.indexes.include(address)
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

    /// Takes the name from the tenant. The tree goes with it when nobody else has or uses it, and otherwise some day.
    pub async fn delete(self: &Arc<Self>, tenant: &Name, name: &Name) -> Result<(), Fault> {
        let (own, tenant, name) = (self.clone(), tenant.clone(), name.clone());
        blocking(move || {
            let taken = lock(&own.state).names.take_back(&tenant, &name).map_err(io_fault)?;
            let Some(named) = taken else {
                return Err(Fault::new(Kind::NotFound, format!("there is no environment '{name}'"))
                    .hint("list those that there are"));
            };
            let is_last = !lock(&own.state).names.mention(&named.key);
            if is_last {
                own.remove(&named.key)?;
            }
            Ok(())
        })
        .await
    }

    /// Removes what is too old or too much, and what makers left that died. `mounted` are the trees that living sandboxes
    /// have: they stay. Until this was called once, nothing is removed at all.
    pub async fn sweep(self: &Arc<Self>, mounted: &BTreeSet<EnvKey>) -> Result<Vec<EnvKey>, Fault> {
        lock(&self.state).mounted = Some(mounted.iter().cloned().collect());
        let own = self.clone();
        let gone = blocking(move || {
            work::sweep(&own.layout.work());
            own.keep_times();
            Ok(own.evict())
        })
        .await?;
        self.trim_cache().await;
        Ok(gone)
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
            Some(index) if !self.has_index(index.address()) => Source::Request(index),
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

    /// Resolves and makes, and notes what came of it.
    async fn make(
        self: &Arc<Self>,
        tenant: &Name,
        question: &Question,
        requirements: &Requirements,
        source: &Source,
        may_build: bool,
    ) -> Result<EnvKey, Fault> {
        let now = (self.settings.clock)();
        let known = {
            let state = lock(&self.state);
            let known = state.answers.get(question).or_else(|| state.answers.get(&question.of(tenant)));
            known.cloned()
        };
        let workshop = self.workshop().await?;
        let fresh = known.as_ref().filter(|known| is_fresh(known.made_at, now, self.settings.lock_ttl));
        let answer = match fresh.and_then(|known| self.remembered(known)) {
            // The tree has gone and the lock has not.
            Some(answer) => answer,
            None => match self.resolved(tenant, question, requirements, source, may_build).await {
                Ok(answer) => answer,
                Err(Unresolved::Trouble(Trouble::IndexDown(why) | Trouble::Unresolvable(why)))
                    if self.is_there(known.as_ref()) =>
                {
                    warn!(%why, "the index does not answer; an environment is used that may be out of date");
                    return Ok(known.expect("it was looked at").key);
                }
                Err(unresolved) => return Err(unresolved.into()),
            },
        };
        let lock = Lock::parse(&answer.lock)?;
        let order =
            Order { key: &answer.key, lock: &lock, source, tenant: answer.question.tenant.as_ref(), now };
        let began = Instant::now();
        let made = workshop.make(&order).await?;
        if made.is_new {
            self.counts.builds.fetch_add(1, Ordering::Relaxed);
            info!(key = %answer.key, bytes = made.manifest.shape.bytes, took = ?began.elapsed(), "environment made");
        }
        let (own, key) = (self.clone(), answer.key.clone());
        blocking(move || {
            answer.keep(&own.layout.locks()).map_err(io_fault)?;
            let tree = Tree::new(&own.layout, made.manifest, now);
            {
                let mut state = lock_state(&own.state);
                state.trees.entry(answer.key.clone()).or_insert_with(|| Arc::new(tree));
                state.answers.insert(answer.question.clone(), Remembered::of(&answer));
            }
            // What was just made is the most recently used, and goes only when it alone is too much.
            own.evict();
            Ok(())
        })
        .await?;
        Ok(key)
    }

    /// A lock for the requirements, with packages built in sandboxes where that has to be.
    async fn resolved(
        self: &Arc<Self>,
        tenant: &Name,
        question: &Question,
        requirements: &Requirements,
        source: &Source,
        may_build: bool,
    ) -> Result<Answer, Unresolved> {
        let workshop = self.workshop().await?;
        let mut built: Vec<PathBuf> = Vec::new();
        let lock = loop {
            self.counts.resolutions.fetch_add(1, Ordering::Relaxed);
            match (workshop.resolve(requirements, source, &built).await, self.builder.get()) {
                (Ok(lock), _) => break lock,
                (Err(Unresolved::Trouble(Trouble::NeedsBuild(package))), Some(builder))
                    if may_build && built.len() < sdist::MOST =>
                {
                    let place =
                        self.build_sdist(tenant, &package, requirements, source, builder.as_ref()).await?;
                    if built.contains(&place) {
                        return Err(Unresolved::Trouble(Trouble::NeedsBuild(package)));
                    }
                    built.push(place);
                }
                (Err(unresolved), _) => return Err(unresolved),
            }
        };
        let question = if built.is_empty() { question.clone() } else { question.of(tenant) };
        let python = &workshop.python;
        let key = lock.key(python, &question.index, question.tenant.as_ref());
        let made_at = (self.settings.clock)();
        Ok(Answer { question, key, made_at, lock: lock.text })
    }

    /// Where the wheel is that a sandbox made of the package's sources, now or before. What it needs is itself an
    /// environment, so that the type of this has to be said.
    fn build_sdist<'a>(
        self: &'a Arc<Self>,
        tenant: &'a Name,
        package: &'a str,
        requirements: &'a Requirements,
        source: &'a Source,
        builder: &'a dyn SdistBuilder,
    ) -> Pin<Box<dyn Future<Output = Result<PathBuf, Fault>> + Send + 'a>> {
        Box::pin(async move {
            let workshop = self.workshop().await?;
            let fetched = workshop.fetch_sdist(package, requirements, source).await?;
            let place = workshop.wheel_place(tenant, &fetched.sha256);
            if place.is_dir() {
                return Ok(place);
            }
            // What the build needs is the sources' choice and not the user's, so that the list of allowed packages does not
            // say anything about it.
            let needs = Requirements::parse(&fetched.build_requires, &AllowedPackages::default())?;
            let index = match source {
                Source::Request(index) => Some(index.clone()),
                Source::Operator(_) => None,
            };
            let environment = self.ready(tenant, &needs, None, index, false).await?;
            let job = SdistJob {
                tenant: tenant.clone(),
                package: package.to_owned(),
                version: fetched.version.clone(),
                archive: fetched.archive.clone(),
                environment,
            };
            let wheel = builder.build(&job).await?;
            workshop.accept_wheel(tenant, package, &fetched, wheel).await
        })
    }

    fn remembered(&self, known: &Remembered) -> Option<Answer> {
        let all = Answer::load_all(&self.layout.locks());
        all.into_iter().find(|answer| answer.key == known.key && answer.made_at == known.made_at)
    }

    fn is_there(&self, known: Option<&Remembered>) -> bool {
        known.is_some_and(|known| lock(&self.state).trees.contains_key(&known.key))
    }

    /// Removes what has to go. Says what went.
    fn evict(&self) -> Vec<EnvKey> {
        let now = (self.settings.clock)();
        let going = {
            let state = lock(&self.state);
            let Some(mounted) = &state.mounted else { return Vec::new() };
            let candidate = |(key, tree): (&EnvKey, &Arc<Tree>)| Candidate {
                key: key.clone(),
                bytes: tree.manifest.shape.bytes,
                last_used: tree.last_used(),
                in_use: mounted.contains(key) || lock(&tree.held).users > 0,
            };
            evict(&state.trees.iter().map(candidate).collect::<Vec<_>>(), &self.settings.budget, now)
        };
        let gone: Vec<EnvKey> = going
            .into_iter()
            .filter(|key| {
                self.remove(key).unwrap_or_else(|fault| {
                    warn!(%key, %fault, "an environment cannot be removed");
                    false
                })
            })
            .collect();
        self.counts.evictions.fetch_add(gone.len() as u64, Ordering::Relaxed);
        gone
    }

    /// Removes the tree unless somebody uses it, here or in another process.
    fn remove(&self, key: &EnvKey) -> Result<bool, Fault> {
        let tree = {
            let mut state = lock(&self.state);
            let is_mounted = state.mounted.as_ref().is_none_or(|mounted| mounted.contains(key));
            let Some(tree) = state.trees.get(key).cloned() else { return Ok(false) };
            if is_mounted || lock(&tree.held).users > 0 {
                return Ok(false);
            }
            state.trees.remove(key);
            tree
        };
        let Some(_alone) = Locked::try_exclusive(&tree.holding).map_err(io_fault)? else {
            lock(&self.state).trees.insert(key.clone(), tree);
            return Ok(false);
        };
        discard(&self.layout.tree(key), &self.layout.work()).map_err(io_fault)?;
        _ = std::fs::remove_file(self.layout.used().join(key.as_str()));
        lock(&self.state).names.forget(key);
        Ok(true)
    }

    fn keep_times(&self) {
        let trees: Vec<Arc<Tree>> = {
            let state = lock(&self.state);
            state.names.keep_times();
            state.trees.values().cloned().collect()
        };
        for tree in trees {
            let path = self.layout.used().join(tree.manifest.key.as_str());
            let text = tree.last_used.load(Ordering::Relaxed).to_string();
            if files::read(&path, 64).ok().as_deref() != Some(&text) {
                // It is taken for older after a restart then.
                _ = files::write(&path, text.as_bytes(), 0o600);
            }
        }
    }

    /// What uv has downloaded may have half of the room; beyond that it begins anew.
    async fn trim_cache(&self) {
        let (cache, largest) = (self.layout.cache(), self.settings.budget.bytes / 2);
        let measured = blocking(move || Ok(disk_usage(&cache))).await;
        let Some(workshop) = self.workshop.get() else { return };
        if measured.is_ok_and(|bytes| bytes > largest) {
            let none = Source::Operator(crate::Indexes::default());
            let clean = ["cache", "clean"].map(str::to_owned).to_vec();
            let cleaned = workshop.uv.run(clean, &none, &self.layout.root, self.settings.build_timeout).await;
            if let Err(trouble) = cleaned {
                warn!(?trouble, "what uv has downloaded cannot be removed");
            }
        }
    }
}

impl State {
    fn load(layout: &Layout, now: Timestamp, lock_ttl: Duration) -> Self {
        let left = work::sweep(&layout.work());
        if left > 0 {
            info!(left, "what was left half-made is gone");
        }
        let mut trees = HashMap::new();
        for path in files::entries(&layout.trees()) {
            match Manifest::load(&path) {
                Some(manifest) => {
                    trees.insert(manifest.key.clone(), Arc::new(Tree::new(layout, manifest, now)));
                }
                None => {
                    warn!(path = %path.display(), "an environment is not what was made and is removed");
                    _ = discard(&path, &layout.work());
                }
            }
        }
        let mut answers = HashMap::new();
        for answer in Answer::load_all(&layout.locks()) {
            if is_fresh(answer.made_at, now, lock_ttl) || trees.contains_key(&answer.key) {
                answers.insert(answer.question.clone(), Remembered::of(&answer));
            } else {
                answer.remove(&layout.locks());
            }
        }
        let mut names = Names::load(layout.names());
        names.retain(|key| trees.contains_key(key));
        Self { trees, answers, names, mounted: None }
    }
}

impl Remembered {
    fn of(answer: &Answer) -> Self {
        Self { key: answer.key.clone(), made_at: answer.made_at }
    }
}

impl Tree {
    fn new(layout: &Layout, manifest: Manifest, now: Timestamp) -> Self {
        let used = files::read(&layout.used().join(manifest.key.as_str()), 64).ok();
        let last_used = used.and_then(|text| text.parse().ok()).unwrap_or_else(|| now.as_millisecond());
        Self {
            path: layout.tree(&manifest.key).join(TREE),
            holding: layout.holding(&manifest.key),
            last_used: AtomicI64::new(last_used),
            held: Mutex::default(),
            manifest,
        }
    }

    fn last_used(&self) -> Timestamp {
        Timestamp::from_millisecond(self.last_used.load(Ordering::Relaxed))
            .unwrap_or(self.manifest.created_at)
    }

    /// None when another process is removing it.
    fn take(self: &Arc<Self>, now: Timestamp) -> Result<Option<InUse>, Fault> {
        let mut held = lock(&self.held);
        if held.users == 0 {
            let Some(shared) = Locked::try_shared(&self.holding).map_err(io_fault)? else { return Ok(None) };
            if !self.path.is_dir() {
                return Ok(None);
            }
            held._lock = Some(shared);
        }
        held.users += 1;
        self.last_used.fetch_max(now.as_millisecond(), Ordering::Relaxed);
        Ok(Some(InUse { _user: Arc::new(User { tree: self.clone() }) }))
    }
}

fn ready_from(
    tree: &Tree,
    name: Name,
    requested: &[String],
    cache: Cache,
    build: Duration,
    now: Timestamp,
    in_use: InUse,
) -> Ready {
    let manifest = &tree.manifest;
    let target = manifest.key.target();
    let modules: BTreeSet<&String> =
        requested.iter().filter_map(|name| manifest.modules.get(name)).flatten().collect();
    Ready {
        key: manifest.key.clone(),
        name,
        path: tree.path.clone(),
        python: format!("{target}/{PYTHON}"),
        target,
        prefix: manifest.python.prefix.clone(),
        packages: manifest.packages.clone(),
        python_version: manifest.python.short_version().to_owned(),
        modules: modules.into_iter().cloned().collect(),
        created_at: manifest.created_at,
        last_used_at: now,
        cache,
        build,
        is_private: manifest.tenant.is_some(),
        in_use,
    }
}

/// Names of what canonical requirements ask for.
fn requested_of(requirements: &[String]) -> Vec<String> {
    Requirements::parse(requirements, &AllowedPackages::default())
        .map(|requirements| requirements.names().to_vec())
        .unwrap_or_default()
}

/// A clock that went back makes nothing fresh for longer than it should be.
fn is_fresh(made_at: Timestamp, now: Timestamp, ttl: Duration) -> bool {
    Duration::try_from(now.duration_since(made_at)).is_ok_and(|age| age <= ttl)
}

fn disk_usage(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let Ok(about) = entry.metadata() else { continue };
        sum += about.blocks() * 512;
        if about.is_dir() {
            sum += disk_usage(&entry.path());
        }
    }
    sum
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked has left facts that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock_state(mutex: &Mutex<State>) -> MutexGuard<'_, State> {
    lock(mutex)
}
