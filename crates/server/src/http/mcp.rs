//! `/mcp`: the tools for MCP clients over streamable HTTP, in the current revision of the protocol and in those before it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as Reply;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cubicle_api as api;
use cubicle_model::{Fault, Kind};
use cubicle_tools::Bench;
use cubicle_tools::mcp::{Benches, Server};
use rmcp::model::ErrorData;
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::problem::Problem;
use super::request::LARGEST_JSON;
use crate::app::tasks::Conversation;
use crate::app::tools::CallersBench;
use crate::app::{App, Caller};

const PATH: &str = "/mcp";
/// Where RFC 9728 puts what a client must know to get a token.
pub(super) const METADATA: &str = "/.well-known/oauth-protected-resource";
pub(super) const METADATA_OF_MCP: &str = "/.well-known/oauth-protected-resource/mcp";
const SESSION: &str = "mcp-session-id";

pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let mut sessions = SessionConfig::default();
    // As long as the sandbox of a session, which a client that comes back wants to find again.
    sessions.keep_alive = Some(Duration::from_secs(u64::from(app.settings.lease_ttl_seconds)));
    let mut manager = LocalSessionManager::default();
    manager.session_config = sessions;
    // Hosts and origins are looked at by ourselves: the gate knows whether there are keys, and under which names.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_max_request_body_bytes(LARGEST_JSON)
        .with_cancellation_token(app.stopping.child_token());
    let server = Server::new(OfRequest(Arc::clone(app)));
    let service = StreamableHttpService::new(move || Ok(server.clone()), Arc::new(manager), config);
    Router::new()
        .route_service(PATH, service)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(app), refuse_foreign_pages))
}

/// Every request has the rights of whoever sent it, whatever session it names.
#[derive(Debug, Clone)]
struct OfRequest(Arc<App>);

impl Benches for OfRequest {
    fn bench(&self, context: &RequestContext<RoleServer>) -> Result<Arc<dyn Bench>, ErrorData> {
        let unknown = || ErrorData::internal_error("nobody knows who asks", None);
        let parts = context.extensions.get::<Parts>().ok_or_else(unknown)?;
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(unknown)?;
        let session = parts.headers.get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let conversation = Conversation::of(&context.meta.0);
        Ok(Arc::new(CallersBench { app: Arc::clone(&self.0), caller, session, conversation }))
    }
}

/// A page of another site that somebody has open must not use what their browser can reach.
async fn refuse_foreign_pages(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if is_own_page(request.headers(), &app.settings.address) {
        return next.run(request).await;
    }
    let fault = Fault::new(Kind::Denied, "pages of other sites are not answered")
        .hint("leave the Origin header out, or ask from a page of this server");
    Problem::from(fault).into_response()
}

fn is_own_page(headers: &HeaderMap, address: &str) -> bool {
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("null"));
    let Some(origin) = text(header::ORIGIN) else { return true };
    let host = text(header::HOST);
    let place = |url: &str| url.split_once("://").map(|(_, rest)| rest.trim_end_matches('/').to_owned());
    let from = place(origin);
    from.is_some() && (from.as_deref() == host || from == place(address))
}

/// What a client without a key is told beside the refusal: where it can learn how to get a token.
pub(super) fn challenged(app: &App, path: &str, mut response: Response) -> Response {
    if path == PATH && response.status() == StatusCode::UNAUTHORIZED {
        let before = response.headers().get(header::WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let separator = if before == Some("Bearer") { " " } else { ", " };
        let before = before.unwrap_or("Bearer");
        let address = app.settings.address.trim_end_matches('/');
        let text = format!("{before}{separator}resource_metadata=\"{address}{METADATA_OF_MCP}\"");
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
    }
    response
}

/// How to get a token for this server
///
/// Protected resource metadata as in RFC 9728.
#[utoipa::path(get, operation_id = "get_resource_metadata", path = "/.well-known/oauth-protected-resource", tag = "system", security(()),
    responses((status = 200, body = api::ResourceMetadata)))]
pub(super) async fn metadata(State(app): State<Arc<App>>) -> Reply<api::ResourceMetadata> {
    Reply(described(&app, ""))
}

/// How to get a token for the tools
///
/// The same for `/mcp`.
#[utoipa::path(get, operation_id = "get_mcp_resource_metadata", path = "/.well-known/oauth-protected-resource/mcp", tag = "system", security(()),
    responses((status = 200, body = api::ResourceMetadata)))]
pub(super) async fn metadata_of_mcp(State(app): State<Arc<App>>) -> Reply<api::ResourceMetadata> {
    Reply(described(&app, PATH))
}

fn described(app: &App, path: &str) -> api::ResourceMetadata {
    let issuer = app.settings.tokens.as_ref().map(|tokens| tokens.issuer().to_owned());
    api::ResourceMetadata {
        resource: format!("{}{path}", app.settings.address.trim_end_matches('/')),
        authorization_servers: issuer.into_iter().collect(),
        bearer_methods_supported: vec!["header".into()],
        scopes_supported: ["read", "run"].map(str::to_owned).into(),
        resource_name: "Cubicle".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_server_itself_are_answered() {
        let table = [
            (None, true),
            (Some("http://127.0.0.1:7878"), true),
            (Some("https://cubicle.example.com"), true),
            (Some("http://evil.example"), false),
            (Some("http://127.0.0.1:7879"), false),
            (Some("null"), false),
            (Some("127.0.0.1:7878"), false),
            (Some(""), false),
        ];
        for (origin, expected) in table {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:7878"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            }
            assert_eq!(is_own_page(&headers, "https://cubicle.example.com/"), expected, "{origin:?}");
        }
    }
}
