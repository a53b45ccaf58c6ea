//! What is said about webhooks, in both directions.

use std::time::Duration;

use cubicle_api::client::Secret;
use cubicle_model::webhook::Allowed;
use cubicle_model::{Fault, Kind};

use super::parse;
use crate::values::Span;

/// The one that may be a list in the file.
pub(super) const ALLOW: &str = "webhooks.allow";
/// More would be tried for weeks.
const MOST_PAUSES: usize = 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Webhooks {
    /// Of workers: the first one signs, and all are accepted.
    pub(crate) secrets: Option<Vec<Secret>>,
    /// Where workers tell that their task has ended.
    pub(crate) path: Option<String>,
    pub(crate) allow: Option<Allowed>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry_pauses: Option<Vec<Duration>>,
}

impl Webhooks {
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            secrets: self.secrets.or(below.secrets),
            path: self.path.or(below.path),
            allow: self.allow.or(below.allow),
            timeout: self.timeout.or(below.timeout),
            retry_pauses: self.retry_pauses.or(below.retry_pauses),
        }
    }

    /// Sets the key, when it is one of webhooks.
    pub(super) fn set(&mut self, key: &str, text: &str, at: &str) -> Option<Result<(), Fault>> {
        let set = match key {
            "ai_worker_config.webhook_secret" => {
                let all: Vec<_> = text.split_whitespace().map(Secret::new).collect();
                self.secrets = Some(all);
                Ok(())
            }
            "ai_worker_config.webhook_path" => {
                self.path = Some(text.to_owned());
                Ok(())
            }
            ALLOW => parse(text, at).map(|allow| self.allow = Some(allow)),
            "webhooks.timeout" => timeout(text, at).map(|timeout| self.timeout = Some(timeout)),
            "webhooks.retry_pauses" => pauses(text, at).map(|pauses| self.retry_pauses = Some(pauses)),
            _ => return None,
        };
        Some(set)
    }
}

fn timeout(text: &str, at: &str) -> Result<Duration, Fault> {
    let span = parse::<Span>(text, at)?.0;
    match span.is_zero() || span > Duration::from_secs(60) {
        true => Err(Fault::new(Kind::Invalid, format!("{at}: a receiver has up to 60s to answer"))),
        false => Ok(span),
    }
}

fn pauses(text: &str, at: &str) -> Result<Vec<Duration>, Fault> {
    let all = text.split([' ', ',']).filter(|word| !word.is_empty()).map(|word| parse::<Span>(word, at));
    let all = all.map(|span| span.map(|span| span.0)).collect::<Result<Vec<_>, _>>()?;
    match all.is_empty() || all.len() > MOST_PAUSES {
        true => Err(Fault::new(
            Kind::Invalid,
            format!("{at}: expected 1 to {MOST_PAUSES} times, as in '5s 30s 2m'"),
        )),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;
    use crate::environment::Environment;

    fn load(toml: &str, environment: &Environment) -> Result<Settings, Fault> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cubicle.toml");
        std::fs::write(&path, toml).unwrap();
        Settings::load(Some(&path), environment, false)
    }

    #[test]
    fn receivers_pauses_and_secrets_are_read() {
        let toml = "[webhooks]\nallow = ['assistant.lan:8000', '10.1.0.0/16']\ntimeout = '3s'\nretry_pauses = '1s 2m'";
        let environment = Environment::from([("AI_WORKER_WEBHOOK_SECRET", "new old")]);
        let webhooks = load(toml, &environment).unwrap().webhooks;
        assert_eq!(webhooks.allow, Some("assistant.lan:8000 10.1.0.0/16".parse().unwrap()));
        assert_eq!(webhooks.timeout, Some(Duration::from_secs(3)));
        assert_eq!(webhooks.retry_pauses, Some(vec![Duration::from_secs(1), Duration::from_secs(120)]));
        assert_eq!(webhooks.secrets, Some(vec![Secret::new("new"), Secret::new("old")]));
        assert!(!format!("{webhooks:?}").contains("new"));
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_place() {
        for (line, said) in [
            ("allow = 'http://a.example/'", "webhooks.allow"),
            ("allow = ['10.0.0.1/8']", "10.0.0.0/8"),
            ("timeout = '2m'", "60s"),
            ("timeout = 'soon'", "webhooks.timeout"),
            ("retry_pauses = ''", "1 to 20 times"),
            ("retry_pauses = '5s never'", "never"),
            ("alow = 'a'", "webhooks.allow"),
        ] {
            let fault = load(&format!("[webhooks]\n{line}"), &Environment::from([])).unwrap_err();
            let text = format!("{fault} {}", fault.way_out().unwrap_or_default());
            assert!(text.contains(said), "{line}: {text}");
        }
    }
}
