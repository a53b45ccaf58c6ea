//! Whoever a request comes from, with what the audit log says of it.

use cubicle_model::{Fault, Kind, Name, Principal, Proof, RequestId, Scope, UserName};
use cubicle_store::{Actor, Context};

use super::App;

#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    pub(crate) from: Option<String>,
    pub(crate) request: RequestId,
}

impl Caller {
    pub(crate) fn context(&self, app: &App) -> Context {
        Context {
            node: app.node,
            now: app.now(),
            actor: Actor {
                tenant: Some(self.principal.tenant.clone()),
                name: self.principal.user.to_string(),
                key: self.principal.key(),
                from: self.from.clone(),
                request: Some(self.request),
            },
        }
    }

    pub(crate) fn tenant(&self) -> &Name {
        &self.principal.tenant
    }

    pub(crate) fn must(&self, scope: Scope) -> Result<(), Fault> {
        if self.principal.may(scope) {
            return Ok(());
        }
        let fault = Fault::new(Kind::Denied, format!("this {} lacks the scope '{scope}'", self.proof()));
        Err(match self.principal.proof {
            Proof::Token { .. } => fault.hint("ask its issuer for a token that has it"),
            Proof::Key(_) | Proof::Nothing => {
                fault.hint("use a key that has it; an administrator can make one with 'cubicle keys create'")
            }
        })
    }

    /// The user that something is done for: the caller, or whom it may act for.
    pub(crate) fn user(&self, asked: Option<&str>) -> Result<UserName, Fault> {
        let Some(asked) = asked else { return Ok(self.principal.user.clone()) };
        let user: UserName = asked.parse().map_err(|error| Fault::new(Kind::Invalid, format!("{error}")))?;
        if self.principal.may_act_as(&user) {
            return Ok(user);
        }
        let proof = self.proof();
        Err(Fault::new(Kind::Denied, format!("this {proof} may not act for '{user}'"))
            .hint(format!("leave the user out, or use a {proof} with the scope 'act_for_others'")))
    }

    fn proof(&self) -> &'static str {
        match self.principal.proof {
            Proof::Token { .. } => "token",
            Proof::Key(_) | Proof::Nothing => "key",
        }
    }

    /// Whether an object of this owner exists for the caller.
    pub(crate) fn sees(&self, tenant: &Name, user: &UserName) -> bool {
        let same_tenant = *tenant == self.principal.tenant;
        let may_look = *user == self.principal.user
            || self.principal.may(Scope::ActForOthers)
            || self.principal.may(Scope::Manage);
        (same_tenant && may_look) || self.principal.may(Scope::Admin)
    }

    /// In lists: everybody's of the tenant, or only the caller's own.
    pub(crate) fn listed_user(&self) -> Option<UserName> {
        let all = self.principal.may(Scope::ActForOthers) || self.principal.may(Scope::Manage);
        (!all).then(|| self.principal.user.clone())
    }
}
