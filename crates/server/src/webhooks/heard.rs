//! A worker's call that its task has ended: who it may be, before what it says.

use cubicle_model::{Fault, TaskId, TaskStatus};
use cubicle_worker::Completion;
use cubicle_worker::completion::{EVENT_TYPE, SOURCE};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::signature::Signed;
use super::{WebhookSettings, is_token, task_secret};

const MOST_FILES: usize = 1000;
const LONGEST_NAME: usize = 1024;

/// What came in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) token: Option<&'a str>,
    /// `X-Webhook-Signature`.
    pub(crate) signature: Option<&'a str>,
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`, where all of them are there.
    pub(crate) standard: Option<(&'a str, &'a str, &'a str)>,
    pub(crate) body: &'a [u8],
}

/// Why a call is not heard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unheard {
    #[error("the call is not signed, or not with a secret of this server")]
    Unsigned,
    #[error("the address that was called is not that of this task")]
    WrongToken,
    #[error("the body does not tell the end of a task: {0}")]
    NotACompletion(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Unheard {
    /// For the log and the metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::WrongToken => "wrong_token",
            Self::NotACompletion(_) => "not_a_completion",
            Self::Fault(_) => "failed",
        }
    }
}

#[derive(Deserialize)]
struct Whose {
    task_id: TaskId,
}

/// What a worker must say, and what it may leave out: the task's own end is observed, too.
#[derive(Deserialize)]
struct Said {
    #[serde(default = "event_type")]
    event_type: String,
    #[serde(default = "source")]
    source: String,
    task_id: TaskId,
    status: TaskStatus,
    #[serde(default)]
    duration_seconds: u64,
    #[serde(default)]
    exit_code: Option<i32>,
    #[serde(default)]
    output_files: Vec<String>,
    #[serde(default)]
    error_message: Option<String>,
}

fn event_type() -> String {
    EVENT_TYPE.into()
}

fn source() -> String {
    SOURCE.into()
}

impl Call<'_> {
    /// Who calls comes first; of what it says only the task's id is looked at until that is known.
    pub(crate) fn check(
        &self,
        settings: &WebhookSettings,
        link_secret: &[u8; 32],
        now_seconds: i64,
    ) -> Result<Completion, Unheard> {
        let whose = object::<Whose>(self.body).map(|whose| whose.task_id);
        if !settings.secrets.is_empty() && !self.is_signed(settings, whose.as_ref().ok(), now_seconds) {
            return Err(Unheard::Unsigned);
        }
        let task = whose?;
        if !self.token.is_some_and(|token| is_token(link_secret, task, token)) {
            return Err(Unheard::WrongToken);
        }
        completion(self.body, task)
    }

    fn is_signed(&self, settings: &WebhookSettings, task: Option<&TaskId>, now_seconds: i64) -> bool {
        let operators = settings.secrets.iter().map(|secret| secret.reveal().to_vec());
        let tasks = settings
            .secrets
            .iter()
            .filter_map(|secret| task.map(|task| task_secret(secret, *task).into_bytes()));
        let secrets: Vec<_> = operators.chain(tasks).collect();
        let signed = Signed { plain: self.signature, standard: self.standard };
        signed.is_by(&secrets, self.body, now_seconds)
    }
}

/// A list in the place of an object would be read by position.
fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, Unheard> {
    match body.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(body).map_err(not_json),
        _ => Err(Unheard::NotACompletion("it is not a JSON object".into())),
    }
}

/// A parser's words repeat what it has read; where that is must do.
fn not_json(error: serde_json::Error) -> Unheard {
    let (line, column) = (error.line(), error.column());
    Unheard::NotACompletion(format!("it is not what is expected at line {line}, column {column}"))
}

fn completion(body: &[u8], task: TaskId) -> Result<Completion, Unheard> {
    let said: Said = object(body)?;
    let refuse = |what: &str| Err(Unheard::NotACompletion(what.into()));
    if said.task_id != task {
        return refuse("it names two tasks");
    }
    if said.event_type != EVENT_TYPE {
        return refuse("'event_type' is not worker_completed");
    }
    if said.source != SOURCE {
        return refuse("'source' is not kubernetes");
    }
    if !said.status.has_ended() {
        return refuse("'status' is none of success, failed, timeout, cancelled");
    }
    let is_name =
        |name: &String| !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control);
    if said.output_files.len() > MOST_FILES || !said.output_files.iter().all(is_name) {
        return refuse("'output_files' are at most 1000 names of 1 to 1024 bytes without control characters");
    }
    if said.error_message.as_ref().is_some_and(|text| text.contains('\0')) {
        return refuse("'error_message' holds a NUL");
    }
    Ok(Completion {
        event_type: said.event_type,
        source: said.source,
        task_id: task,
        status: said.status,
        duration_seconds: said.duration_seconds,
        exit_code: said.exit_code,
        output_files: said.output_files,
        error_message: said.error_message,
    })
}

#[cfg(test)]
mod tests {
    use cubicle_egress::secret::Secret;
    use cubicle_model::hexadecimal;
    use hmac::Mac;
    use serde_json::{Value, json};

    use super::super::{authenticated, token};
    use super::*;

    const LINK: [u8; 32] = [9; 32];

    fn task(byte: u8) -> TaskId {
        TaskId::from_random([byte; 16])
    }

    fn settings(secrets: &[&str]) -> WebhookSettings {
        let secrets = secrets.iter().map(|secret| Secret::new(*secret)).collect();
        WebhookSettings { secrets, ..WebhookSettings::default() }
    }

    fn signed(secret: &str, body: &str) -> String {
        let mac = authenticated(secret.as_bytes(), &[body.as_bytes()]);
        format!("sha256={}", hexadecimal(&mac.finalize().into_bytes()))
    }

    fn seed(task: TaskId) -> Value {
        json!({
            "event_type": "worker_completed", "source": "kubernetes", "task_id": task, "status": "success",
            "duration_seconds": 145, "exit_code": 0,
            "output_files": ["analyze_spending.py", "spending_chart.png", "summary.md"], "error_message": null,
        })
    }

    fn check(
        settings: &WebhookSettings,
        token: Option<&str>,
        signature: Option<&str>,
        body: &str,
    ) -> Result<Completion, String> {
        let call = Call { token, signature, standard: None, body: body.as_bytes() };
        call.check(settings, &LINK, 0).map_err(|why| format!("{}: {why}", why.name()))
    }

    #[test]
    fn a_call_is_heard_with_the_right_signature_and_the_right_token() {
        let (settings, body) = (settings(&["new", "old"]), seed(task(1)).to_string());
        let good = token(&LINK, task(1));
        let derived = |secret: &str| task_secret(&Secret::new(secret), task(1));
        for secret in ["new".to_owned(), "old".to_owned(), derived("new"), derived("old")] {
            let heard = check(&settings, Some(&good), Some(&signed(&secret, &body)), &body).unwrap();
            assert_eq!(
                (heard.task_id, heard.status, heard.exit_code),
                (task(1), TaskStatus::Success, Some(0))
            );
            assert_eq!(heard.output_files.len(), 3);
        }
    }

    #[test]
    fn nothing_is_read_before_the_signature_and_nothing_more_before_the_token() {
        let (settings, body) = (settings(&["secret"]), seed(task(1)).to_string());
        let good = token(&LINK, task(1));
        let by_other_task = task_secret(&Secret::new("secret"), task(2));
        let unsigned = [None, Some(""), Some("sha256="), Some(&signed("guess", &body)[..])];
        let forged = signed(&by_other_task, &body);
        for signature in unsigned.into_iter().chain([Some(&forged[..])]) {
            for token in [None, Some("00"), Some(&good[..])] {
                let why = check(&settings, token, signature, &body).unwrap_err();
                assert!(why.starts_with("unsigned"), "{why}");
            }
            let why = check(&settings, Some(&good), signature, "not even JSON").unwrap_err();
            assert!(why.starts_with("unsigned"), "{why}");
        }
        let elsewhere = token(&LINK, task(2));
        for wrong in [None, Some(""), Some("00"), Some(&elsewhere[..])] {
            let odd = json!({ "task_id": task(1), "status": 7 }).to_string();
            for body in [&body, &odd] {
                let why = check(&settings, wrong, Some(&signed("secret", body)), body).unwrap_err();
                assert!(why.starts_with("wrong_token"), "{why}");
            }
        }
        // The signature is of the raw bytes: the same value in other bytes has another.
        let spaced = body.replace(':', ": ");
        let why = check(&settings, Some(&good), Some(&signed("secret", &body)), &spaced).unwrap_err();
        assert!(why.starts_with("unsigned"), "{why}");
    }

    #[test]
    fn without_a_secret_the_token_alone_decides() {
        let (settings, body) = (settings(&[]), seed(task(1)).to_string());
        let good = token(&LINK, task(1));
        assert!(check(&settings, Some(&good), None, &body).is_ok());
        assert!(check(&settings, Some(&good), Some("sha256=00"), &body).is_ok());
        assert!(check(&settings, None, None, &body).unwrap_err().starts_with("wrong_token"));
    }

    #[test]
    fn what_is_no_completion_is_refused_with_the_reason() {
        let settings = settings(&[]);
        let good = token(&LINK, task(1));
        let least =
            json!({ "task_id": task(1), "status": "failed", "duration_seconds": 1, "output_files": [] });
        assert!(check(&settings, Some(&good), None, &least.to_string()).is_ok());
        let more = json!({ "task_id": task(1), "status": "timeout", "something": { "else": 1 } });
        assert!(check(&settings, Some(&good), None, &more.to_string()).is_ok());
        let with = |name: &str, value: Value| {
            let mut body = seed(task(1));
            body[name] = value;
            body.to_string()
        };
        let positional =
            json!(["worker_completed", "kubernetes", task(1), "success", 1, 0, [], null]).to_string();
        let twice = format!("{{\"task_id\": \"{}\", {}", task(2), &seed(task(1)).to_string()[1..]);
        for body in [
            with("event_type", json!("pod_started")),
            with("source", json!("me")),
            with("status", json!("running")),
            with("status", json!("done")),
            with("duration_seconds", json!(-1)),
            with("duration_seconds", json!("soon")),
            with("exit_code", json!(1.5)),
            with("exit_code", json!(99_999_999_999_u64)),
            with("output_files", json!("a")),
            with("output_files", json!([1])),
            with("output_files", json!([""])),
            with("output_files", json!(["a\nb"])),
            with("output_files", json!(vec!["a"; 1001])),
            with("output_files", json!(["a".repeat(1025)])),
            with("error_message", json!("a\u{0}b")),
            json!({ "task_id": task(1) }).to_string(),
            format!("{} {{}}", seed(task(1))),
        ] {
            let why = check(&settings, Some(&good), None, &body).unwrap_err();
            assert!(why.starts_with("not_a_completion"), "{body}: {why}");
        }
        for body in [
            "",
            "{}",
            "[]",
            &positional,
            "null",
            "\u{feff}{}",
            "{\"task_id\": 7}",
            "{\"task_id\": \"task-1\"}",
            &twice,
        ] {
            let why = check(&settings, Some(&good), None, body).unwrap_err();
            assert!(why.starts_with("not_a_completion"), "{body}: {why}");
        }
        let secret = with("status", json!("sk-secret-words"));
        assert!(!check(&settings, Some(&good), None, &secret).unwrap_err().contains("sk-secret"));
    }
}
