//! Requests for what another server of the same database has: they are handed on to it, with the caller's own key.

use std::time::Duration;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::Response;
use cubicle_model::{Fault, Kind};
use cubicle_store::Placed;
use tokio::net::TcpStream;

use super::hand_on::hand_on;
use crate::app::App;

/// Names the server that handed a request on. Such a request is never handed on again, so that none goes in circles.
const HANDED_ON_BY: &str = "x-cubicle-handed-on-by";
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Marks an answer of another server, which has given it an id and a form already.
#[derive(Debug, Clone, Copy)]
pub(super) struct FromElsewhere;

/// What a request is about that one node alone has, unless it was handed on already.
pub(super) fn subject(request: &Request) -> Option<Placed> {
    let is_new = !request.headers().contains_key(HANDED_ON_BY);
    is_new.then(|| placed(request.method(), request.uri().path())).flatten()
}

/// The server that has something, if that is another one.
pub(super) async fn place(app: &App, what: Option<Placed>) -> Result<Option<Authority>, Fault> {
    let Some(what) = what.filter(|_| app.store.is_shared()) else { return Ok(None) };
    if matches!(what, Placed::Sandbox(id) if app.live.get(id).is_some()) {
        return Ok(None);
    }
    let Some(node) = app.store.node_of(what).await?.filter(|node| *node != app.node) else {
        return Ok(None);
    };
    let address = app.store.node(node).await?.map(|(address, _)| address);
    // One that is reached in another way is named in the answer instead.
    let plain = address.as_deref().and_then(|address| address.strip_prefix("http://"));
    Ok(plain.and_then(|plain| plain.parse().ok()))
}

/// What only the node that has it can answer for. What the store says of it, every node can.
fn placed(method: &Method, path: &str) -> Option<Placed> {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let only_looks = method == Method::GET || method == Method::HEAD;
    match parts.as_slice() {
        ["api", "v1", "sandboxes" | "leases" | "execs", _] | ["api", "v1", "sandboxes", _, "execs"]
            if only_looks =>
        {
            None
        }
        ["api", "v1", "sandboxes", id, ..] => id.parse().map(Placed::Sandbox).ok(),
        ["api", "v1", "execs", id, ..] | ["api", "stream", id] => id.parse().map(Placed::Exec).ok(),
        ["api", "v1", "leases", id, ..] | ["sandboxes", "leases", id] => id.parse().map(Placed::Lease).ok(),
        ["api", "v1", "tasks", _] if only_looks => None,
        ["api", "v1", "tasks", id, ..] => id.parse().map(Placed::Task).ok(),
        ["api", "v1", "artifacts", id, _] => id.parse().map(Placed::Artifact).ok(),
        _ => None,
    }
}

/// Hands a request on to another server.
pub(super) async fn forward(app: &App, place: &Authority, mut request: Request) -> Result<Response, Fault> {
    let unreachable = |error: String| {
        Fault::new(Kind::Unavailable, format!("the server that has this, {place}, cannot be reached"))
            .hint("what it has goes on without it; try again when it is back")
            .because(error)
    };
    let (host, port) = (place.host().trim_matches(['[', ']']), place.port_u16().unwrap_or(80));
    let connecting = tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect((host, port)));
    let stream = match connecting.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(error.to_string())),
        Err(_) => return Err(unreachable("it did not answer in time".into())),
    };
    let _ = stream.set_nodelay(true);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let invalid = |_| Fault::new(Kind::Invalid, "the path cannot be handed on");
    *request.uri_mut() = path.parse::<Uri>().map_err(invalid)?;
    let name = |text: &str| {
        HeaderValue::from_str(text).map_err(|error| Fault::new(Kind::Internal, error.to_string()))
    };
    let headers = request.headers_mut();
    headers.insert(header::HOST, name(place.as_str())?);
    headers.insert(HANDED_ON_BY, name(&app.node.to_string())?);
    // Whether the page may ask was looked at here, under the name that it knows.
    headers.remove(header::ORIGIN);
    let mut response = hand_on(stream, request).await.map_err(|error| unreachable(error.to_string()))?;
    response.extensions_mut().insert(FromElsewhere);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_one_node_alone_can_answer_is_handed_on() {
        let body = "a".repeat(26);
        let (sandbox, lease) = (format!("sbx-{body}"), format!("lease-{body}"));
        let (exec, artifact) = (format!("exec-{body}"), format!("art-{body}"));
        let of_sandbox = Some(Placed::Sandbox(sandbox.parse().unwrap()));
        let of_lease = Some(Placed::Lease(lease.parse().unwrap()));
        let of_exec = Some(Placed::Exec(exec.parse().unwrap()));
        let table = [
            (Method::GET, format!("/api/v1/sandboxes/{sandbox}"), None),
            (Method::GET, format!("/api/v1/sandboxes/{sandbox}/execs"), None),
            (Method::POST, format!("/api/v1/sandboxes/{sandbox}/execs"), of_sandbox),
            (Method::GET, format!("/api/v1/sandboxes/{sandbox}/files"), of_sandbox),
            (Method::GET, format!("/api/v1/sandboxes/{sandbox}/ports/80/a/b"), of_sandbox),
            (Method::GET, format!("/api/v1/leases/{lease}"), None),
            (Method::DELETE, format!("/api/v1/leases/{lease}"), of_lease),
            (Method::POST, format!("/api/v1/leases/{lease}/heartbeat"), of_lease),
            (Method::DELETE, format!("/sandboxes/leases/{lease}"), of_lease),
            (Method::GET, format!("/api/v1/execs/{exec}"), None),
            (Method::GET, format!("/api/v1/execs/{exec}/output"), of_exec),
            (Method::DELETE, format!("/api/v1/execs/{exec}"), of_exec),
            (Method::GET, format!("/api/stream/{exec}"), of_exec),
            (Method::GET, format!("/api/stream/{lease}"), None),
            (Method::GET, format!("/api/v1/artifacts/{artifact}"), None),
            (Method::GET, "/api/v1/leases".into(), None),
            (Method::POST, "/api/v1/leases".into(), None),
            (Method::GET, "/health".into(), None),
        ];
        for (method, path, expected) in table {
            assert_eq!(placed(&method, &path), expected, "{method} {path}");
        }
        let content = format!("/api/v1/artifacts/{artifact}/content");
        assert_eq!(placed(&Method::GET, &content), Some(Placed::Artifact(artifact.parse().unwrap())));
    }
}
