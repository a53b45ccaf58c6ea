//! The OpenAPI document: what handlers say of themselves, made complete.
//!
//! A handler writes `default` for whatever it may be refused with. Here it becomes the statuses that are possible, so that
//! one that is not documented is a mistake that a test can find.

use cubicle_model::{ArtifactId, DeliveryId, ExecId, KeyId, LeaseId, SandboxId, TaskId, WebhookId};
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{
    Content, OpenApi as Description, Ref, RefOr, Required, Response, ResponseBuilder, Schema,
};
use utoipa::{OpenApi, openapi};

#[derive(OpenApi)]
#[openapi(
    info(title = "Cubicle", description = "Runs AI workers and the code they write, each in its own sandbox."),
    components(schemas(cubicle_api::ErrorBody, cubicle_api::OutputFrame)),
    modifiers(&Secured)
)]
pub(super) struct Document;

/// Every route but health needs a key or a token.
struct Secured;

impl utoipa::Modify for Secured {
    fn modify(&self, document: &mut Description) {
        use openapi::security::{Http, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT");
        components.add_security_scheme("token", SecurityScheme::Http(token.build()));
        let either = ["key", "token"].map(|name| SecurityRequirement::new(name, Vec::<String>::new()));
        document.security = Some(either.into());
    }
}

/// Names of parameters, and what each looks like.
const SHAPES: [(&str, &str); 8] = [
    ("sandbox_id", SandboxId::PREFIX),
    ("lease_id", LeaseId::PREFIX),
    ("exec_id", ExecId::PREFIX),
    ("key_id", KeyId::PREFIX),
    ("artifact_id", ArtifactId::PREFIX),
    ("task_id", TaskId::PREFIX),
    ("webhook_id", WebhookId::PREFIX),
    ("delivery_id", DeliveryId::PREFIX),
];
const NAME: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
/// Simpler than what is allowed: a path of a few plain names.
const SHARED_PATH: &str = "^[A-Za-z0-9_-]{1,30}(/[A-Za-z0-9_-]{1,30}){0,5}$";
const SECRET_NAME: &str = "^[A-Za-z][A-Za-z0-9_.-]{0,63}$";

/// Every status that a refusal may have: its name among the document's parts, and what it means.
const REFUSALS: [(u16, &str, &str); 10] = [
    (400, "Invalid", "What was sent is not what is expected"),
    (401, "Unauthenticated", "A key is needed, or this one is not known"),
    (403, "Denied", "The key may not do this, or this host cannot"),
    (404, "NotFound", "There is no such thing"),
    (408, "TooSlow", "The body did not come in time"),
    (409, "Conflict", "What is there does not allow it"),
    (413, "TooLarge", "The body is too large"),
    (
        429,
        "Full",
        "There is no room, or the key makes too many requests; `Retry-After` says when to try again",
    ),
    (500, "Internal", "A defect; the log has the request's id"),
    (503, "Unavailable", "Not now; whether it was done is not known"),
];

pub(super) fn complete(mut document: Description) -> Description {
    let parts = document.components.get_or_insert_default();
    for (_, name, what) in REFUSALS {
        parts.responses.insert(name.to_owned(), RefOr::T(refusal(what)));
    }
    // A parameter that takes all of the rest of a path is one like any other to clients.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter {
                    describe(parameter);
                }
            }
            if operation.responses.responses.remove("default").is_some() {
                for (status, name) in refusals(path, method, operation) {
                    let there = operation.responses.responses.entry(status.to_string());
                    there.or_insert_with(|| RefOr::Ref(Ref::from_response_name(name)));
                }
            }
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                // Of raw bytes there may be none.
                if body.content.keys().any(|media_type| media_type != "application/json") {
                    body.required = Some(Required::False);
                }
                body.content.iter_mut().for_each(raw);
            }
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response {
                    response.content.iter_mut().for_each(raw);
                    if response.description.is_empty() {
                        response.description = if status == "201" { "Made" } else { "Done" }.into();
                    }
                }
            }
        }
    }
    document
}

/// As JSON. The library writes `u-int64` for what everybody else calls `uint64`.
pub(super) fn text(document: &Description) -> String {
    // Texts and numbers have a JSON form.
    document.to_pretty_json().unwrap_or_default().replace("\"u-int", "\"uint")
}

/// Bytes are not a list of numbers.
fn raw((media_type, content): (&String, &mut RefOr<Content>)) {
    if let ("application/octet-stream" | "application/x-tar" | "*/*", RefOr::T(content)) =
        (media_type.as_str(), content)
    {
        let bytes = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
        content.schema = Some(bytes.into());
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let all = [
        ("GET", item.get.as_mut()),
        ("PUT", item.put.as_mut()),
        ("POST", item.post.as_mut()),
        ("DELETE", item.delete.as_mut()),
        ("PATCH", item.patch.as_mut()),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation?)))
}

/// Ids and names in paths have a pattern.
fn describe(parameter: &mut Parameter) {
    let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema else { return };
    if let Some((_, prefix)) = SHAPES.iter().find(|(name, _)| *name == parameter.name) {
        schema.pattern = Some(format!("^{prefix}-[a-z2-7]{{26}}$"));
        return;
    }
    match (parameter.name.as_str(), &parameter.parameter_in) {
        ("name", ParameterIn::Path) => schema.pattern = Some(NAME.into()),
        ("tool", ParameterIn::Path) => schema.pattern = Some("^[a-z_]{1,64}$".into()),
        ("secret_name", ParameterIn::Path) => schema.pattern = Some(SECRET_NAME.into()),
        ("port", ParameterIn::Path) => {
            (schema.minimum, schema.maximum) = (Some(1.into()), Some(i32::from(u16::MAX).into()));
        }
        ("skill_name", ParameterIn::Path) => schema.pattern = Some("^[a-z0-9-]{1,64}$".into()),
        ("path", ParameterIn::Path) => schema.pattern = Some(SHARED_PATH.into()),
        ("if-match", ParameterIn::Header) if schema.pattern.is_none() => {
            schema.pattern = Some(r#"^("?[0-9]{1,18}"?|\*)$"#.into());
        }
        (cubicle_api::IDEMPOTENCY_KEY, ParameterIn::Header) => schema.pattern = Some("^[!-~]{1,256}$".into()),
        _ => {}
    }
}

/// Which of them an operation may answer with.
fn refusals(path: &str, method: &str, operation: &Operation) -> Vec<(u16, &'static str)> {
    let takes_body = operation.request_body.is_some();
    let takes_anything = takes_body || operation.parameters.as_ref().is_some_and(|all| !all.is_empty());
    // Without a requirement of its own the document's counts; an empty one is nobody's.
    let needs_key = operation.security.is_none();
    let of_sandbox = path.contains("{sandbox_id}") || path.starts_with("/api/stream");
    let possible = |status: u16| match status {
        400 => takes_anything,
        401 | 403 | 429 => needs_key,
        404 => path.contains('{') || takes_body,
        408 | 413 => takes_body,
        409 => method != "GET" || of_sandbox,
        _ => true,
    };
    let all = REFUSALS.into_iter().filter(|(status, ..)| possible(*status));
    all.map(|(status, name, _)| (status, name)).collect()
}

fn refusal(what: &str) -> Response {
    let body = Content::new(Some(Ref::from_schema_name("ErrorBody")));
    ResponseBuilder::new().description(what).content("application/json", body).build()
}
