//! Setting, listing and removing secrets. A value goes in, and never comes out here.

use std::sync::Arc;

use cubicle_egress::secret::Secret;
use cubicle_model::placement::{SecretFile, SecretsToGive};
use cubicle_model::{CredentialBinding, Fault, Kind, Name, Scope, SecretName, SecretSource};
use cubicle_store::{NewSecret, Page, StoredSecret};

use super::leases::SecretGifts;
use super::{App, Caller};
use crate::secrets::{Held, LARGEST_VALUE, Whose, usual_binding};

/// Somebody else changed another secret of the tenant in between each time.
const MOST_ATTEMPTS: u32 = 16;

/// Each is compared with each.
const MOST_BINDINGS: usize = 64;
const MOST_TEMPLATES: usize = 64;

/// What a secret is asked to be. Its value is not shown.
#[derive(Debug)]
pub(crate) struct SecretRequest {
    pub(crate) source: SecretSource,
    /// Where the source is a value.
    pub(crate) value: Option<Secret>,
    /// Absent keeps those that it has.
    pub(crate) bindings: Option<Vec<CredentialBinding>>,
}

impl App {
    /// Sets or replaces a secret of the caller's tenant, and says whether it is new. `version` is the one that the caller
    /// saw, 0 for "none yet". What is the same already is not written again.
    pub(crate) async fn set_secret(
        self: &Arc<Self>,
        caller: &Caller,
        name: SecretName,
        asked: SecretRequest,
        version: Option<i64>,
    ) -> Result<(Held, bool), Fault> {
        caller.must(Scope::Manage)?;
        caller.must(asked.source.needs())?;
        check(&asked)?;
        let (app, caller) = (Arc::clone(self), caller.clone());
        self.to_its_end(async move { app.put_secret(&caller, name, asked, version).await }).await
    }

    async fn put_secret(
        &self,
        caller: &Caller,
        name: SecretName,
        asked: SecretRequest,
        version: Option<i64>,
    ) -> Result<(Held, bool), Fault> {
        for _ in 0..MOST_ATTEMPTS {
            let all = self.store.secrets_of(caller.tenant().clone()).await?;
            let before = all.secrets.into_iter().find(|secret| secret.name == name);
            let seen = before.as_ref().map_or(0, |secret| secret.version);
            if version.is_some_and(|version| version != seen) {
                return Err(Fault::new(
                    Kind::Conflict,
                    "the secret was changed by somebody else in the meantime",
                )
                .hint("read it again, and repeat what still applies"));
            }
            let bindings = match (&asked.bindings, &before) {
                (Some(bindings), _) => bindings.clone(),
                (None, Some(before)) => before.bindings.clone(),
                (None, None) => usual_binding(&name).into_iter().collect(),
            };
            can_be_carried(asked.value.as_ref(), &bindings)?;
            if let Some(before) = before.as_ref().filter(|before| self.is_same(before, &asked, &bindings)) {
                return Ok((self.held(before.clone()).await, false));
            }
            let new = NewSecret {
                tenant: caller.tenant().clone(),
                name: name.clone(),
                source: asked.source.clone(),
                sealed: self.seal(caller.tenant(), &name, all.revision + 1, asked.value.as_ref())?,
                bindings,
            };
            let put = self.store.put_secret(caller.context(self), new, all.revision + 1).await?;
            if let Some(stored) = put {
                self.secrets.changed(&stored.tenant, stored.version);
                self.tell();
                return Ok((self.held(stored).await, before.is_none()));
            }
        }
        Err(Fault::new(Kind::Conflict, "the secrets of this tenant are changed all the time")
            .hint("try again"))
    }

    fn seal(
        &self,
        tenant: &Name,
        name: &SecretName,
        version: i64,
        value: Option<&Secret>,
    ) -> Result<Option<String>, Fault> {
        let Some(value) = value else { return Ok(None) };
        let whose = Whose { tenant, name, version };
        let sealed = self.settings.sealing_keys.seal(whose, value.reveal(), self.surroundings.bits());
        sealed.map(Some).ok_or_else(|| Fault::new(Kind::Internal, "the secret cannot be sealed"))
    }

    fn is_same(&self, before: &StoredSecret, asked: &SecretRequest, bindings: &[CredentialBinding]) -> bool {
        let same_value = match (&before.sealed, &asked.value) {
            (Some(sealed), Some(value)) => {
                let whose = Whose { tenant: &before.tenant, name: &before.name, version: before.version };
                self.settings.sealing_keys.open(whose, sealed).is_ok_and(|known| known == *value)
            }
            (None, None) => true,
            _ => false,
        };
        same_value && before.source == asked.source && before.bindings == bindings
    }

    pub(crate) async fn list_secrets(&self, caller: &Caller, page: &Page) -> Result<Vec<Held>, Fault> {
        // Names tell what somebody has, so that only those who may change them see them.
        caller.must(Scope::Manage)?;
        let all = self.read_secrets(caller.tenant()).await?.secrets;
        let after = page.after.as_deref().unwrap_or_default();
        let one_more = page.limit as usize + 1;
        Ok(all.into_iter().filter(|held| held.name.as_str() > after).take(one_more).collect())
    }

    pub(crate) async fn secret(&self, caller: &Caller, name: &SecretName) -> Result<Held, Fault> {
        caller.must(Scope::Manage)?;
        let all = self.read_secrets(caller.tenant()).await?.secrets;
        all.into_iter().find(|held| held.name == *name).ok_or_else(|| no_such(name))
    }

    pub(crate) async fn remove_secret(
        self: &Arc<Self>,
        caller: &Caller,
        name: SecretName,
        version: Option<i64>,
    ) -> Result<(), Fault> {
        let held = self.secret(caller, &name).await?;
        if held.record.is_none() {
            return Err(Fault::new(Kind::Conflict, format!("'{name}' comes from the server's environment"))
                .hint("unset it there, or set a secret of this name that takes its place"));
        }
        let (app, caller) = (Arc::clone(self), caller.clone());
        let removal = async move {
            let tenant = caller.tenant().clone();
            let revision =
                app.store.delete_secret(caller.context(&app), tenant.clone(), name, version).await?;
            app.secrets.changed(&tenant, revision);
            app.tell();
            Ok(())
        };
        self.to_its_end(removal).await
    }
}

impl App {
    /// The values of secrets that a sandbox is given.
    pub(super) async fn secrets_to_give(
        &self,
        tenant: &Name,
        asked: &SecretGifts,
    ) -> Result<SecretsToGive, Fault> {
        if *asked == SecretGifts::default() {
            return Ok(SecretsToGive::default());
        }
        let holding = self.holding(tenant).await?;
        let value = |name: &SecretName| -> Result<Vec<u8>, Fault> {
            let held = holding.secrets.iter().find(|held| held.name == *name).ok_or_else(|| no_such(name))?;
            let unavailable =
                |why: &String| Fault::new(Kind::Unavailable, format!("'{name}' cannot be had now: {why}"));
            Ok(held.value.as_ref().map_err(unavailable)?.reveal().to_vec())
        };
        let mut given = SecretsToGive::default();
        for name in &asked.files {
            let invalid = |error| Fault::new(Kind::Invalid, format!("{error}"));
            let file = SecretFile { name: name.as_str().parse().map_err(invalid)?, bytes: value(name)? };
            given.files.push(file);
        }
        for (variable, name) in &asked.env {
            let text = String::from_utf8(value(name)?).ok().filter(|text| !text.contains('\0'));
            let unfit = || {
                Fault::new(Kind::Invalid, format!("'{name}' is not text and cannot be a variable"))
                    .hint("give it as a file")
            };
            given.env.insert(variable.clone(), text.ok_or_else(unfit)?);
        }
        Ok(given)
    }
}

fn no_such(name: &SecretName) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no secret '{name}'"))
        .hint("'cubicle secrets list' shows what there is")
}

fn check(asked: &SecretRequest) -> Result<(), Fault> {
    let invalid = |text: String| Err(Fault::new(Kind::Invalid, text));
    if let Err(bad) = asked.source.check() {
        return invalid(bad.to_string());
    }
    match asked.value.as_ref().map(|value| value.reveal().len()) {
        Some(0) => return invalid("a secret is not empty".into()),
        Some(length) if length > LARGEST_VALUE => {
            return invalid(format!("a secret has at most {LARGEST_VALUE} bytes"));
        }
        _ => {}
    }
    let bindings = asked.bindings.as_deref().unwrap_or_default();
    if bindings.len() > MOST_BINDINGS {
        return invalid(format!("a secret has at most {MOST_BINDINGS} bindings"));
    }
    for (number, binding) in bindings.iter().enumerate() {
        if binding.templates.as_ref().is_some_and(|templates| templates.len() > MOST_TEMPLATES) {
            return invalid(format!("a binding names at most {MOST_TEMPLATES} templates"));
        }
        if let Err(bad) = binding.check() {
            return invalid(bad.to_string());
        }
        if let Some(why) = bindings[..number].iter().find_map(|other| binding.contradicts(other)) {
            return invalid(format!("another binding of the same secret {why}"));
        }
    }
    Ok(())
}

fn can_be_carried(value: Option<&Secret>, bindings: &[CredentialBinding]) -> Result<(), Fault> {
    let Some(value) = value else { return Ok(()) };
    match bindings.iter().find(|binding| !binding.form.can_carry(value.reveal())) {
        None => Ok(()),
        Some(binding) => Err(Fault::new(
            Kind::Invalid,
            format!(
                "the value has a line feed or another control character, which '{}' cannot carry",
                binding.form
            ),
        )
        .hint("leave the end of the line out, or bind it in another form")),
    }
}
