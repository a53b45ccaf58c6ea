//! Handing a request on over another connection, and what comes back to whoever asked: streams and upgrades too.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

/// Headers that belong to one connection, not to what is asked over it.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
];

/// Hands a request on whose address and headers are those that the other side expects.
pub(super) async fn hand_on(
    over: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut request: Request,
) -> Result<Response, hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(over)).await?;
    // Ends with the connection, which both ends can end.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "a connection to somebody else ended badly");
        }
    });
    *request.version_mut() = Version::HTTP_11;
    let upgrade = request.headers().get(header::UPGRADE).cloned();
    strip(request.headers_mut());
    if let Some(upgrade) = &upgrade {
        request.headers_mut().insert(header::UPGRADE, upgrade.clone());
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let ours = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let mut answer = sender.send_request(request).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(ours) = ours
    {
        let theirs = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            // Either end may hang up; there is nobody to tell.
            if let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) {
                let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
            }
        });
        let mut response = answer.map(|_| Body::empty());
        response.extensions_mut().clear();
        return Ok(response);
    }
    let mut response = answer.map(Body::new).into_response();
    strip(response.headers_mut());
    Ok(response)
}

fn strip(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}
