//! What the operator says of webhooks.

use std::time::Duration;

use cubicle_egress::secret::Secret;
use cubicle_model::webhook::{Allowed, PAUSES};
use cubicle_model::{Fault, Kind};

#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Where workers tell that their task has ended.
    pub path: String,
    /// The first one signs, and all of them are accepted. Without any, calls need no signature.
    pub secrets: Vec<Secret>,
    /// Receivers beside those on the internet.
    pub allow: Allowed,
    /// How long to wait after each attempt that failed.
    pub pauses: Vec<Duration>,
    /// For one attempt, from the name of the receiver to the head of its answer.
    pub timeout: Duration,
}

impl WebhookSettings {
    pub const PATH: &'static str = "/api/webhooks/worker-complete";
    /// No other route begins like this.
    const BELOW: &'static str = "/api/webhooks/";

    /// Whether the path can be a route beside all others.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let is_plain = |name: &str| {
            let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
            !name.is_empty() && name.bytes().all(plain)
        };
        if self.path.strip_prefix(Self::BELOW).is_some_and(is_plain) {
            return Ok(());
        }
        let text = format!("'{}' cannot be the path of the webhook", self.path.escape_default());
        Err(Fault::new(Kind::Invalid, text).hint(format!(
            "write one as {}, with another last part of letters, digits, '-', '_' and '.'",
            Self::PATH
        )))
    }
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            path: Self::PATH.into(),
            secrets: Vec::new(),
            allow: Allowed::default(),
            pauses: PAUSES.to_vec(),
            timeout: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_one_that_nobody_else_has() {
        let check = |path: &str| WebhookSettings { path: path.into(), ..WebhookSettings::default() }.check();
        for good in [WebhookSettings::PATH, "/api/webhooks/done", "/api/webhooks/a.b_c-1"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in
            ["", "/", "/health", "/api/v1/leases", "/api/webhooks/", "/api/webhooks/{a}", "/api/webhooks/a/b"]
        {
            assert!(check(bad).unwrap_err().way_out().is_some(), "{bad}");
        }
    }
}
