//! From requirements to a tree, with packages built in sandboxes where that has to be.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cubicle_model::{Fault, Name};
use tracing::{info, warn};

use super::Environments;
use super::held::Tree;
use super::state::{Remembered, is_fresh, lock};
use crate::build::{Order, blocking, io_fault};
use crate::index::Source;
use crate::lock::Lock;
use crate::resolve::{Answer, Question, Unresolved};
use crate::sdist::{self, SdistBuilder, SdistJob};
use crate::trouble::Trouble;
use crate::{AllowedPackages, EnvKey, Requirements};

impl Environments {
    /// Resolves and makes, and notes what came of it.
    pub(super) async fn make(
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
        let parsed = Lock::parse(&answer.lock)?;
        let order =
            Order { key: &answer.key, lock: &parsed, source, tenant: answer.question.tenant.as_ref(), now };
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
                let mut state = lock(&own.state);
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
}
