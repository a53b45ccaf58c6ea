//! The tools as an MCP server, whatever carries its messages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_model::{ExecId, Kind, SandboxId};
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ContentBlock, ErrorData, Implementation, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, MetaObject, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{Peer, RequestContext, RoleServer};
use serde_json::{Value, json};

use crate::bench::{Bench, CreateSandbox};
use crate::call::{self, Watch};
use crate::error::ToolError;
use crate::faces::{all_for_mcp, mcp_tool};
use crate::workspace::is_picture;

const INSTRUCTIONS: &str = "Tools for an isolated Linux sandbox of your own. Files are in /workspace; relative paths are taken \
    from there. The sandbox is made at the first call and ends when it is not used for a while, with its files. Use \
    execute with background for servers, and edit_file or apply_patch instead of rewriting files. What is to outlive the \
    sandbox, and skills, are in the shared workspace: read_workspace, write_workspace, list_skills and their siblings.";
/// Tools change only with the program.
const FRESH_FOR_MS: u64 = 3_600_000;
/// In base64.
const LARGEST_PICTURE: usize = 5 * 1024 * 1024;
/// A call that was given up may have asked for an exec that is still on its way to its sandbox.
const ATTEMPTS_TO_END: usize = 50;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// Says over what the tools of a request are done.
pub trait Benches: Clone + Send + Sync + 'static {
    fn bench(&self, context: &RequestContext<RoleServer>) -> Result<Arc<dyn Bench>, ErrorData>;
}

/// An MCP server that has the tools and nothing else.
#[derive(Debug, Clone)]
pub struct Server<B> {
    benches: B,
}

impl<B: Benches> Server<B> {
    pub fn new(benches: B) -> Self {
        Self { benches }
    }
}

impl<B: Benches> ServerHandler for Server<B> {
    fn get_info(&self) -> ServerConfig {
        let program = Implementation::new("cubicle", env!("CARGO_PKG_VERSION")).with_title("Cubicle");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(program)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools: Result<Vec<Tool>, _> =
            all_for_mcp().map(|definition| serde_json::from_value(mcp_tool(&definition))).collect();
        let tools = tools.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(ListToolsResult::with_all_items(tools)
            .with_ttl_ms(FRESH_FOR_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !all_for_mcp().any(|definition| definition.name == request.name) {
            let shown: String = request.name.chars().take(100).collect();
            return Err(ErrorData::invalid_params(
                format!("there is no tool '{}'", shown.escape_default()),
                None,
            ));
        }
        let bench = self.benches.bench(&context)?;
        let attended = Arc::new(Attended {
            bench: Arc::clone(&bench),
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
            exec: Mutex::new(None),
            is_done: AtomicBool::new(false),
        });
        // Dropped with the request, also when whoever carries messages gives up on it.
        let guard = Guard(Arc::clone(&attended));
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let outcome = tokio::select! {
            outcome = carry_out(&*bench, &request.name, arguments, &*attended) => outcome,
            // What runs is ended by the guard.
            () = context.ct.cancelled() => {
                return Err(ErrorData::internal_error("the call was cancelled", None));
            }
        };
        attended.is_done.store(true, Ordering::SeqCst);
        drop(guard);
        Ok(result(outcome).into())
    }

    // What is not offered is not there, rather than empty.
    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }
}

async fn carry_out(
    bench: &dyn Bench,
    name: &str,
    mut arguments: Value,
    watch: &dyn Watch,
) -> Result<Value, ToolError> {
    if crate::definitions::workspace().iter().any(|definition| definition.name == name) {
        return call::call_without_sandbox(bench, name, arguments).await;
    }
    if crate::definitions::definition(name).is_none() {
        return sandboxes(bench, name, arguments).await;
    }
    let named = arguments.as_object_mut().and_then(|arguments| arguments.remove("sandbox_id"));
    let sandbox = match named {
        None | Some(Value::Null) => bench.usual_sandbox().await?,
        Some(id) => sandbox_id(&id)?,
    };
    call::call(bench, sandbox, name, arguments, watch).await
}

/// Tools about sandboxes themselves.
async fn sandboxes(bench: &dyn Bench, name: &str, arguments: Value) -> Result<Value, ToolError> {
    let lifecycle = bench.lifecycle().ok_or_else(call::no_such_tool)?;
    let known = crate::definitions::lifecycle().iter().find(|definition| definition.name == name);
    if let (Some(definition), Some(given)) = (known, arguments.as_object())
        && let Some(name) = definition.unknown_argument(given.keys())
    {
        return Err(ToolError::invalid(format!("there is no argument '{}'", name.escape_default())));
    }
    match name {
        "create_sandbox" => {
            let asked: CreateSandbox = call::parsed(arguments)?;
            call::answer(lifecycle.create(asked).await?)
        }
        "list_sandboxes" => Ok(json!({ "sandboxes": call::answer(lifecycle.list().await?)? })),
        "release_sandbox" => {
            let sandbox = sandbox_id(&arguments["sandbox_id"])?;
            lifecycle.release(sandbox).await?;
            Ok(json!({ "sandbox_id": sandbox.to_string(), "released": true }))
        }
        _ => Err(call::no_such_tool()),
    }
}

fn sandbox_id(given: &Value) -> Result<SandboxId, ToolError> {
    let text = given.as_str().ok_or_else(|| ToolError::invalid("'sandbox_id' is not the id of a sandbox"))?;
    text.parse().map_err(|error: cubicle_model::ParseIdError| ToolError::invalid(error.to_string()))
}

/// A refusal is an answer, too: the model that asked is to read it and do better.
fn result(outcome: Result<Value, ToolError>) -> CallToolResult {
    match outcome {
        Ok(mut answer) => {
            let pictures = pictures(&mut answer);
            let mut result = CallToolResult::structured(answer);
            result.content.extend(pictures);
            result
        }
        Err(error) => {
            let mut result = CallToolResult::error(vec![ContentBlock::text(error.to_string())]);
            let mut meta = MetaObject::new();
            meta.0.insert("cubicle/error".into(), json!(error));
            result.meta = Some(meta);
            result
        }
    }
}

/// Takes a picture out of an answer, to be shown beside it.
fn pictures(answer: &mut Value) -> Option<ContentBlock> {
    let kind = answer["type"].as_str().filter(|kind| is_picture(kind))?.to_owned();
    let whole = answer["encoding"] == "base64" && answer["truncated"] == false;
    let object = answer.as_object_mut().filter(|_| whole)?;
    // What is larger than models take stays where it is.
    let content =
        object.get("content")?.as_str().filter(|content| content.len() <= LARGEST_PICTURE)?.to_owned();
    object.remove("content");
    Some(ContentBlock::image(content, kind))
}

/// A call, as long as somebody waits for it.
struct Attended {
    bench: Arc<dyn Bench>,
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    /// What runs for it.
    exec: Mutex<Option<(SandboxId, ExecId)>>,
    is_done: AtomicBool,
}

#[async_trait]
impl Watch for Attended {
    fn starts(&self, sandbox: SandboxId, exec: ExecId) {
        *self.exec.lock().unwrap_or_else(PoisonError::into_inner) = Some((sandbox, exec));
    }

    fn listens(&self) -> bool {
        self.token.is_some()
    }

    async fn output(&self, written: u64, text: &str) {
        if let Some(token) = &self.token {
            let progress = ProgressNotificationParam::new(token.clone(), written as f64).with_message(text);
            // Whoever does not listen any more gets the answer, or has given up.
            let _ = self.peer.notify_progress(progress).await;
        }
    }
}

/// Ends what runs for a call that nobody waits for any more.
struct Guard(Arc<Attended>);

impl Drop for Guard {
    fn drop(&mut self) {
        let exec = *self.0.exec.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((sandbox, exec)) = exec.filter(|_| !self.0.is_done.load(Ordering::SeqCst)) else { return };
        let bench = Arc::clone(&self.0.bench);
        // Ends when the exec has, or soon.
        tokio::spawn(async move {
            for _ in 0..ATTEMPTS_TO_END {
                match bench.end(sandbox, exec, None).await {
                    Err(error) if error.kind == Kind::NotFound => tokio::time::sleep(BETWEEN_ATTEMPTS).await,
                    _ => return,
                }
            }
        });
    }
}
