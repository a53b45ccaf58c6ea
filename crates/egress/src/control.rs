//! The gateway as a process of its own, and how the control plane tells it what holds: calls over a Unix socket, each
//! answered before the next, with listeners as descriptors. When the socket closes, the gateway ends; whoever starts
//! the next one attaches every sandbox again.

mod remote;
mod serve;
mod wire;

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::egress::{
    Bill, Bundles, Host, HostName, OwnAddress, OwnAddresses, Policy, Scheme, SyntaxError,
};
use cubicle_model::{Fault, Kind, Name, SandboxId};
use hyper::header::HeaderName;
use serde::{Deserialize, Serialize};

pub use remote::Remote;
pub use serve::serve;

use crate::credentials::{Credential, Form};
use crate::outlet::{Base, Terms};
use crate::secret::Secret;

/// Which socket of a sandbox a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenerKind {
    Proxy,
    Forward,
    DnsUdp,
    DnsTcp,
}

/// What policies refer to, the same for all sandboxes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Common {
    /// The text of every bundle.
    pub bundles: BTreeMap<Name, String>,
    /// Where the control plane listens; without a port, on all of them.
    pub own: Vec<(IpAddr, Option<u16>)>,
}

/// Terms as they are told: a policy as text, and secrets by value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermsText {
    pub policy: Policy,
    pub credentials: Vec<CredentialText>,
    pub bases: Vec<BaseText>,
    pub record: bool,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialText {
    pub name: String,
    /// In base64; none while the secret is not set.
    pub secret: Option<String>,
    pub host: HostName,
    pub port: u16,
    pub form: FormText,
    pub even_plain: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormText {
    Bearer,
    Header(String),
    Basic(String),
    Query(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseText {
    pub name: String,
    /// Plain HTTP upstream is for services on the host itself.
    pub tls: bool,
    pub host: Host,
    pub port: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Call {
    Common(Common),
    /// Comes with a descriptor, which is used by the next `Attach`.
    Listener {
        sandbox: SandboxId,
        kind: ListenerKind,
    },
    Attach {
        sandbox: SandboxId,
        terms: TermsText,
    },
    Change {
        sandbox: SandboxId,
        terms: TermsText,
    },
    Detach {
        sandbox: SandboxId,
    },
    Bill {
        sandbox: SandboxId,
    },
    Recording {
        sandbox: SandboxId,
    },
    Attached,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Done,
    Bill(Option<Bill>),
    /// The smallest policy for what was reached.
    Recording(Policy),
    Attached(Vec<SandboxId>),
    Fault {
        kind: String,
        message: String,
        hint: Option<String>,
    },
}

impl TermsText {
    pub fn new(policy: Policy, credentials: &[Credential], bases: &[Base], record: bool) -> Self {
        let credential = |credential: &Credential| CredentialText {
            name: credential.name.clone(),
            secret: credential.secret.as_ref().map(|secret| STANDARD.encode(secret.reveal())),
            host: credential.host.clone(),
            port: credential.port,
            form: match &credential.form {
                Form::Bearer => FormText::Bearer,
                Form::Header(name) => FormText::Header(name.to_string()),
                Form::Basic { user } => FormText::Basic(user.clone()),
                Form::Query(parameter) => FormText::Query(parameter.clone()),
            },
            even_plain: credential.even_plain,
        };
        let base = |base: &Base| BaseText {
            name: base.name.clone(),
            tls: base.scheme == Scheme::Https,
            host: base.host.clone(),
            port: base.port,
        };
        Self {
            policy,
            credentials: credentials.iter().map(credential).collect(),
            bases: bases.iter().map(base).collect(),
            record,
        }
    }

    fn read(self, bundles: &Bundles, own: &OwnAddresses) -> Result<Terms, Fault> {
        let invalid = |error: &dyn std::fmt::Display| Fault::new(Kind::Invalid, error.to_string());
        let policy = self.policy.resolve(bundles, own).map_err(|error| invalid(&error))?;
        let credential = |credential: CredentialText| {
            let secret = credential.secret.map(|secret| STANDARD.decode(secret).map(Secret::new)).transpose();
            let form = match credential.form {
                FormText::Bearer => Form::Bearer,
                FormText::Header(name) => {
                    Form::Header(name.parse::<HeaderName>().map_err(|error| invalid(&error))?)
                }
                FormText::Basic(user) => Form::Basic { user },
                FormText::Query(parameter) => Form::Query(parameter),
            };
            Ok(Credential {
                name: credential.name,
                // What is wrong with it is not told, as that would tell of it.
                secret: secret.map_err(|_| Fault::new(Kind::Invalid, "a secret is not in base64"))?,
                host: credential.host,
                port: credential.port,
                form,
                even_plain: credential.even_plain,
            })
        };
        let base = |base: BaseText| Base {
            name: base.name,
            scheme: if base.tls { Scheme::Https } else { Scheme::Http },
            host: base.host,
            port: base.port,
        };
        Ok(Terms {
            policy,
            credentials: self.credentials.into_iter().map(credential).collect::<Result<_, Fault>>()?,
            bases: self.bases.into_iter().map(base).collect(),
            record: self.record,
        })
    }
}

impl Common {
    fn read(self) -> Result<(Bundles, OwnAddresses), Fault> {
        let mut bundles = Bundles::default();
        for (name, text) in self.bundles {
            let wrong =
                |error: SyntaxError| Fault::new(Kind::Invalid, format!("in the bundle '@{name}': {error}"));
            bundles.define(name.clone(), &text).map_err(wrong)?;
        }
        let own = self.own.into_iter().map(|(address, port)| OwnAddress { address, port });
        Ok((bundles, OwnAddresses::new(own)))
    }
}

impl From<Fault> for Reply {
    fn from(fault: Fault) -> Self {
        Self::Fault {
            kind: fault.kind().code().into(),
            message: fault.message().into(),
            hint: fault.way_out().map(str::to_owned),
        }
    }
}

impl std::fmt::Debug for TermsText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TermsText({} credentials)", self.credentials.len())
    }
}

impl std::fmt::Debug for CredentialText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CredentialText({} to {})", self.name, self.host)
    }
}
