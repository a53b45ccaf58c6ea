//! Templates: kept in memory for a moment, because every acquire needs one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cubicle_envs::{AllowedPackages, Requirements};
use cubicle_model::template::Recipe;
use cubicle_model::{Fault, Kind, Name, Scope, Template, TemplateRef};
use cubicle_store::Page;
use tokio::time::{Duration, Instant};

use super::{App, Caller};

/// Another server may have changed it.
const FRESH: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Templates {
    found: Mutex<HashMap<(Name, Name), (Template, Instant)>>,
    /// By version, which never changes what it says.
    recipes: Mutex<HashMap<(TemplateRef, i64), Recipe>>,
    /// Of the pools' last round.
    kept: Mutex<BTreeMap<TemplateRef, u32>>,
}

impl Templates {
    fn found(&self) -> MutexGuard<'_, HashMap<(Name, Name), (Template, Instant)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many ready sandboxes of each template are not given up for others.
    pub(crate) fn kept(&self) -> BTreeMap<TemplateRef, u32> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_kept(&self, kept: BTreeMap<TemplateRef, u32>) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept;
    }

    fn forget(&self) {
        self.found().clear();
    }

    fn recipes(&self) -> MutexGuard<'_, HashMap<(TemplateRef, i64), Recipe>> {
        self.recipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These and no others: whatever is not in use any more is read again when it is needed.
    pub(crate) fn remember(&self, templates: &[Template]) {
        let all = templates.iter().map(|one| ((one.at.clone(), one.version), one.recipe.clone()));
        *self.recipes() = all.collect();
    }
}

impl App {
    /// What a tenant means by a name.
    pub(crate) async fn find_template(&self, tenant: &Name, name: &str) -> Result<Template, Fault> {
        let name = parse_name(name)?;
        let at = (tenant.clone(), name);
        if let Some((template, since)) = self.templates.found().get(&at)
            && since.elapsed() < FRESH
        {
            return Ok(template.clone());
        }
        let template = self.store.find_template(at.0.clone(), at.1.clone()).await?;
        self.templates.found().insert(at, (template.clone(), Instant::now()));
        Ok(template)
    }

    /// What a template says, or its newest version where that one was replaced.
    pub(crate) async fn recipe(&self, at: &TemplateRef, version: i64) -> Result<Recipe, Fault> {
        let key = (at.clone(), version);
        if let Some(recipe) = self.templates.recipes().get(&key) {
            return Ok(recipe.clone());
        }
        let template = self.store.template(at.clone()).await?;
        let recipe = template
            .map(|template| template.recipe)
            .ok_or_else(|| Fault::new(Kind::NotFound, format!("the template '{at}' was deleted")))?;
        self.templates.recipes().insert(key, recipe.clone());
        Ok(recipe)
    }

    pub(crate) async fn list_templates(&self, caller: &Caller, page: Page) -> Result<Vec<Template>, Fault> {
        caller.must(Scope::Read)?;
        self.store.templates(caller.tenant().clone(), page).await
    }

    /// A tenant's own template, or everybody's for administrators.
    pub(crate) async fn put_template(
        &self,
        caller: &Caller,
        name: &str,
        shared: bool,
        recipe: Recipe,
        version: Option<i64>,
    ) -> Result<Template, Fault> {
        let at = self.template_at(caller, name, shared)?;
        recipe.check().map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
        self.check_policy(recipe.egress.as_ref())?;
        if !recipe.requirements.is_empty() {
            Requirements::parse(&recipe.requirements, &AllowedPackages::default())?;
        }
        // Which directories of the host sandboxes may see is for whoever runs the host to say.
        if matches!(recipe.root, cubicle_model::Root::Directory(_)) {
            caller.must(Scope::Admin)?;
        }
        let isolation = recipe.isolation().map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
        let probed = self.backend.probe().await;
        if let Some(level) = probed.level(isolation)
            && let Some(unmet) = level.unmet.first()
        {
            return Err(Fault::new(
                Kind::Denied,
                format!("isolation '{isolation}' cannot be had here: {}", unmet.because),
            )
            .hint(unmet.fix.clone()));
        }
        let template = self.store.put_template(caller.context(self), at, recipe, version).await?;
        self.templates.forget();
        self.room_changed.notify_one();
        if let Some(egress) = &self.egress {
            egress.look_again.notify_one();
        }
        Ok(template)
    }

    pub(crate) async fn delete_template(
        &self,
        caller: &Caller,
        name: &str,
        shared: bool,
        version: Option<i64>,
    ) -> Result<(), Fault> {
        let at = self.template_at(caller, name, shared)?;
        self.store.delete_template(caller.context(self), at, version).await?;
        self.templates.forget();
        self.room_changed.notify_one();
        Ok(())
    }

    fn template_at(&self, caller: &Caller, name: &str, shared: bool) -> Result<TemplateRef, Fault> {
        caller.must(if shared { Scope::Admin } else { Scope::Manage })?;
        let owner = (!shared).then(|| caller.tenant().clone());
        Ok(TemplateRef { owner, name: parse_name(name)? })
    }
}

pub(crate) fn parse_name(name: &str) -> Result<Name, Fault> {
    name.parse().map_err(|error| Fault::new(Kind::Invalid, format!("{error}")))
}
