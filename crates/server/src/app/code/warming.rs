//! Interpreters that wait in sandboxes of the pool before there is code for them.
//!
//! What was asked for of late is made ready again: the template's own interpreter, and those of the environments that were
//! used last. A sandbox that waits belongs to nobody, so that only environments that everybody may have are made ready in
//! it; nothing of a tenant is in it before its lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cubicle_envs::Ready;
use cubicle_guest::wire::execute::WarmRequest;
use cubicle_model::{SandboxId, TemplateRef};
use tokio::time::Instant;
use tracing::debug;

use crate::app::App;

/// Code that was asked for longer ago does not keep an interpreter waiting.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Of a template. Each costs as much memory as what it has imported, in every sandbox that it waits in.
const MOST_ENVIRONMENTS: usize = 2;
/// One starts at a time: it takes the cores that code needs.
const EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Warming {
    wanted: Mutex<HashMap<TemplateRef, Demand>>,
    changed: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Demand {
    last: Option<Instant>,
    /// The one that was used last is the last.
    environments: Vec<(Arc<Ready>, Instant)>,
}

impl Warming {
    fn demand(&self) -> MutexGuard<'_, HashMap<TemplateRef, Demand>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Code was asked for.
    pub(crate) fn wanted(&self, template: &TemplateRef, environment: Option<&Arc<Ready>>) {
        let now = Instant::now();
        let mut demand = self.demand();
        let demand = demand.entry(template.clone()).or_default();
        demand.last = Some(now);
        if let Some(ready) = environment.filter(|ready| !ready.is_private) {
            demand.environments.retain(|(other, _)| other.key != ready.key);
            demand.environments.push((Arc::clone(ready), now));
        }
        self.changed.notify_one();
    }

    /// What is to wait in the sandboxes of a template: its own interpreter where nothing is named.
    fn plan(&self, now: Instant) -> HashMap<TemplateRef, Vec<Arc<Ready>>> {
        let mut demand = self.demand();
        demand.retain(|_, demand| {
            let is_recent = |since: Instant| now.duration_since(since) < REMEMBERED;
            demand.environments.retain(|(_, since)| is_recent(*since));
            let surplus = demand.environments.len().saturating_sub(MOST_ENVIRONMENTS);
            demand.environments.drain(..surplus);
            demand.last.is_some_and(is_recent)
        });
        let environments =
            |demand: &Demand| demand.environments.iter().rev().map(|(ready, _)| Arc::clone(ready)).collect();
        demand.iter().map(|(template, demand)| (template.clone(), environments(demand))).collect()
    }
}

/// What waits where, by the place in the pool: the number of an environment, a quarter of the pool for each, or nothing but the
/// template's own interpreter.
fn share(pool: usize, environments: usize) -> Vec<Option<usize>> {
    let each = (pool / 4).max(1);
    (0..pool)
        .map(|place| {
            let environment = place / each;
            (environment < environments && (environment + 1) * each <= pool.max(1)).then_some(environment)
        })
        .collect()
}

impl App {
    /// Makes interpreters ready as long as the server runs.
    pub(crate) async fn keep_interpreters_warm(self: Arc<Self>) {
        if !self.settings.code.warm_interpreters {
            return;
        }
        loop {
            let more = self.warm_one().await;
            match more {
                true => tokio::time::sleep(EVERY).await,
                // The pool was filled, or something else is wanted.
                false => {
                    let changed = self.warming.changed.notified();
                    let _ = tokio::time::timeout(Duration::from_secs(1), changed).await;
                }
            }
        }
    }

    /// Makes one interpreter ready. Whether there may be more to do.
    async fn warm_one(&self) -> bool {
        let plan = self.warming.plan(Instant::now());
        if plan.is_empty() {
            return false;
        }
        let mut pools: HashMap<TemplateRef, Vec<_>> = HashMap::new();
        for (id, template, guest, attached) in self.live.pooled() {
            if plan.contains_key(&template) {
                pools.entry(template).or_default().push((id, guest, attached));
            }
        }
        for (template, mut pool) in pools {
            let environments = &plan[&template];
            // Those that have something already keep it.
            pool.sort_by_key(|(id, _, attached)| (std::cmp::Reverse(attached.interpreters().len()), *id));
            let shares = share(pool.len(), environments.len());
            for ((id, guest, attached), share) in pool.into_iter().zip(shares) {
                let ready = share.map(|number| &environments[number]);
                let key = ready.map_or("", |ready| ready.key.as_str());
                if attached.interpreters().iter().any(|has| has == key) {
                    continue;
                }
                self.warm(id, &guest, ready).await;
                // Also where it could not be: trying again and again would help nobody.
                attached.has_interpreter(key);
                return true;
            }
        }
        false
    }

    async fn warm(&self, id: SandboxId, guest: &cubicle_guest::client::Guest, ready: Option<&Arc<Ready>>) {
        if let Err(fault) = self.attach(guest, id, ready).await {
            debug!(sandbox = %id, error = %fault, "an environment was not attached ahead");
            return;
        }
        let environment = ready.map(|ready| ready.name.to_string());
        match guest.warm(&WarmRequest { environment, wait: true }).await {
            Ok(warmed) if warmed.ready => debug!(sandbox = %id, "an interpreter is ready"),
            Ok(warmed) => debug!(sandbox = %id, because = warmed.because, "no interpreter is ready"),
            Err(error) => debug!(sandbox = %id, %error, "no interpreter is ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_environment_waits_in_a_quarter_of_the_pool_and_in_one_sandbox_at_least() {
        let table = [
            (0, 2, vec![]),
            (1, 1, vec![Some(0)]),
            (2, 0, vec![None, None]),
            (3, 2, vec![Some(0), Some(1), None]),
            (8, 1, vec![Some(0), Some(0), None, None, None, None, None, None]),
            (8, 2, vec![Some(0), Some(0), Some(1), Some(1), None, None, None, None]),
        ];
        for (pool, environments, expected) in table {
            assert_eq!(share(pool, environments), expected, "{pool} {environments}");
        }
    }
}
