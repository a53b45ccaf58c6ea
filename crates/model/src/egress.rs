//! What a sandbox may reach, decided as values: a policy is parsed once, resolved against the operator's bundles, and
//! then asked twice for every attempt, before the name is resolved and again for each address it led to.
//!
//! Nothing here opens a connection or asks a name server; the gateway does, and carries these decisions out.

/// What has a text form is that text in JSON.
macro_rules! as_text {
    ($($name:ident),+) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

pub mod address;
pub mod bill;
pub mod budget;
pub mod bundle;
pub mod decide;
pub mod host;
pub mod network;
pub mod path;
pub mod policy;
pub mod recording;
pub mod rule;
mod syntax;
pub mod terms;
pub mod wanted;
pub mod web_address;

pub use address::{OwnAddress, OwnAddresses, Standing};
pub use bill::{Bill, BillLine, Denial};
pub use budget::{Bucket, Budget};
pub use bundle::Bundles;
pub use decide::{Allowed, Attempt, Conduct, Denied, Reason, Ruleset, Verdict, Via};
pub use host::{Host, HostName, NotAHost};
pub use network::Network;
pub use policy::{Mode, Policy, Statement, UnresolvedBundle};
pub use recording::Recording;
pub use rule::{Methods, Ports, Rule, Scheme, Target, Verb, Whom};
pub use syntax::SyntaxError;
pub use terms::{DuringExec, LeaseEgress, SaidBy};
pub use wanted::{NotWanted, Wanted};
pub use web_address::WebAddress;

#[cfg(test)]
mod properties;
