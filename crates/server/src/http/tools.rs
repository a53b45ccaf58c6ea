//! Tools for agents: `/api/v1/tools`, and those of one sandbox.

use std::sync::Arc;

use axum::Json as Reply;
use axum::extract::State;
use cubicle_api as api;
use cubicle_model::{Fault, Kind, SandboxId, Scope};
use cubicle_tools::Quiet;
use serde_json::{Map, Value};

use super::problem::Answer;
use super::request::{Id, IdAnd, Json, Query};
use crate::app::tools::CallersBench;
use crate::app::{App, Caller};

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Form {
    /// `native`, `openai` for function calling, or `mcp`.
    #[param(pattern = "^(native|openai|mcp)$")]
    format: Option<String>,
}

/// List tools for agents
///
/// With schemas of their arguments and answers, in the form that was asked for.
#[utoipa::path(get, operation_id = "list_tools", path = "/tools", tag = "tools", params(Form),
    responses((status = 200, body = api::Tools), (status = "default", body = api::ErrorBody)))]
pub(super) async fn list(caller: Caller, Query(Form { format }): Query<Form>) -> Answer<Reply<Value>> {
    caller.must(Scope::Read)?;
    match format.as_deref() {
        None | Some("native") => Ok(Reply(cubicle_tools::native_form())),
        Some("openai") => Ok(Reply(cubicle_tools::openai_form())),
        Some("mcp") => Ok(Reply(cubicle_tools::mcp_form())),
        Some(_) => Err(Fault::new(Kind::Invalid, "'format' is native, openai or mcp").into()),
    }
}

/// Do a tool in a sandbox
///
/// The arguments and the answer are as `GET /api/v1/tools` says.
#[utoipa::path(post, operation_id = "call_tool", path = "/sandboxes/{sandbox_id}/tools/{tool}", tag = "tools",
    params(("sandbox_id" = String, Path), ("tool" = String, Path)), request_body = api::ToolArguments,
    responses((status = 200, body = api::ToolAnswer), (status = "default", body = api::ErrorBody)))]
pub(super) async fn call(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdAnd(sandbox, tool): IdAnd<SandboxId, String>,
    Json(arguments): Json<Map<String, Value>>,
) -> Answer<Reply<Value>> {
    // Whose sandbox it is comes before what is wrong with the call.
    app.in_use(&caller, sandbox).await?;
    let bench = CallersBench { app, caller, session: None };
    let answer = cubicle_tools::call(&bench, sandbox, &tool, Value::Object(arguments), &Quiet).await?;
    Ok(Reply(answer))
}

/// Do a tool that needs no sandbox
///
/// The arguments and the answer are as `GET /api/v1/tools` says.
#[utoipa::path(post, operation_id = "call_tool_anywhere", path = "/tools/{tool}", tag = "tools", params(("tool" = String, Path)),
    request_body = api::ToolArguments,
    responses((status = 200, body = api::ToolAnswer), (status = "default", body = api::ErrorBody)))]
pub(super) async fn call_anywhere(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(tool): Id<String>,
    Json(arguments): Json<Map<String, Value>>,
) -> Answer<Reply<Value>> {
    let bench = CallersBench { app, caller, session: None };
    Ok(Reply(cubicle_tools::call_without_sandbox(&bench, &tool, Value::Object(arguments)).await?))
}
