//! Requests that the gateway reads: plain ones through the proxy, those to virtual hosts, and inspected ones.

mod body;
mod guard;
mod headers;
mod pool;
mod target;
mod websocket;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cubicle_model::egress::{Attempt, Conduct, Host, Scheme, Via};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderValue, RETRY_AFTER, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::bill::Tally;
use crate::credentials;
use crate::outlet::{Agreed, Outlet};
use crate::redact::{Content, Redaction};
use crate::refusal::{BadRequest, Failure, Refusal, Spent};
use crate::stream::Patient;
use body::{Inwards, Outwards};
use guard::{Guard, Suspicion};
use headers::Upgrade;
pub(crate) use pool::Pool;
use pool::{Connection, Kept};
use target::Target;
use websocket::Switched;

/// The library reads no head into less than this.
const LEAST_BUFFER: usize = 8192;

/// Where requests come from, and so what they may ask for.
#[derive(Debug, Clone)]
pub(crate) enum Scene {
    /// The proxy: every request names its host.
    Proxy,
    /// A tunnel: every request is for this host.
    Fixed { scheme: Scheme, host: Host, port: u16 },
}

impl Scene {
    /// What a request is for that does not say it in a way that can be understood.
    fn named(&self) -> String {
        match self {
            Self::Proxy => "no host".to_owned(),
            Self::Fixed { host, port, .. } => format!("{host}:{port}"),
        }
    }
}

struct Session {
    outlet: Arc<Outlet>,
    scene: Scene,
    suspicion: Arc<Suspicion>,
    /// What the connection becomes when its last answer was sent.
    switched: Mutex<Option<Switched>>,
}

/// Serves requests until the client ends.
pub(crate) async fn serve<S>(outlet: Arc<Outlet>, io: S, scene: Scene)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = outlet.shared().limits;
    let suspicion = Arc::new(Suspicion::default());
    let io = Guard::new(Patient::new(io, limits.idle), Arc::clone(&suspicion), limits.head);
    let session = Arc::new(Session { outlet, scene, suspicion, switched: Mutex::default() });
    let serving = Arc::clone(&session);
    let service = service_fn(move |request| handle(Arc::clone(&serving), request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_deadline)
        .max_buf_size(limits.head.max(LEAST_BUFFER))
        .max_headers(limits.headers)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    // Boxed, so that a tunnel, which needs none of this, does not make room for it.
    let served = Box::pin(served).await;
    // The library has answered it by itself.
    if served.is_err_and(|error| error.is_parse()) {
        session.outlet.refused(&session.scene.named(), &BadRequest::Malformed.into());
    }
    // Here and not in a task of its own, so that it keeps its place among the connections of the sandbox.
    let switched = session.switched.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(switched) = switched {
        Box::pin(switched.carry(&session.outlet)).await;
    }
}

async fn handle(session: Arc<Session>, request: Request<Incoming>) -> Result<Response<Inwards>, Infallible> {
    let outlet = &session.outlet;
    let mut named = request.uri().authority().map_or_else(|| session.scene.named(), ToString::to_string);
    let plan = match plan(&session, &request, &mut named) {
        Ok(plan) => plan,
        Err(refusal) => {
            outlet.refused(&named, &refusal);
            drain(request.into_body()).await;
            return Ok(refused(&refusal));
        }
    };
    match carry(&session, plan, request).await {
        Ok(response) => Ok(response),
        Err(refusal) => {
            outlet.refused(&named, &refusal);
            Ok(refused(&refusal))
        }
    }
}

/// Reads a little of what a refused client still sends, as it would not read the answer before it has sent all.
async fn drain(mut body: Incoming) {
    const MOST: usize = 256 * 1024;
    const LINGER: Duration = Duration::from_secs(1);
    let _ = tokio::time::timeout(LINGER, async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > MOST {
                break;
            }
        }
    })
    .await;
}

fn refused(refusal: &Refusal) -> Response<Inwards> {
    let mut response = Response::new(Inwards::text(refusal.text()));
    *response.status_mut() = refusal.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    if let Refusal::Budget(Spent::Rate(milliseconds)) = refusal {
        headers.insert(RETRY_AFTER, HeaderValue::from(milliseconds.div_ceil(1000)));
    }
    response
}

/// A request that may be tried.
struct Plan {
    terms: Arc<Agreed>,
    target: Target,
    inspected: bool,
    /// The key of a WebSocket that is asked for.
    websocket: Option<HeaderValue>,
}

/// Decides about a request, before anything is resolved. `named` becomes what it is for, as far as that can be told.
fn plan(session: &Session, request: &Request<Incoming>, named: &mut String) -> Result<Plan, Refusal> {
    let outlet = &session.outlet;
    let shared = outlet.shared();
    let terms = outlet.terms();
    if let Some(reason) = session.suspicion.reason() {
        return Err(BadRequest::Smuggling(reason).into());
    }
    if request.method() == Method::CONNECT {
        return Err(BadRequest::Connect.into());
    }
    let target =
        target::find(&session.scene, request.uri(), request.headers(), &terms.bases, &shared.domain)?;
    *named = format!("{}:{}", target.host, target.port);
    if headers::came_through(request.headers(), &shared.via) {
        return Err(BadRequest::Loop.into());
    }
    let websocket = match headers::upgrade(request.headers()) {
        Upgrade::None => None,
        Upgrade::WebSocket => Some(websocket::key(request.method(), request.version(), request.headers())?),
        Upgrade::Other => return Err(BadRequest::Upgrade.into()),
    };
    let length = request.headers().get(CONTENT_LENGTH);
    let announced = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|announced| announced > shared.limits.request_body) {
        return Err(BadRequest::TooLarge.into());
    }
    let allowed = outlet.by_name(&terms, &attempt(&target, request.method(), request.uri().path()))?;
    outlet.spend_request(&terms, headers::length(request.uri(), request.headers()))?;
    let inspected = allowed.conduct == Conduct::Inspected && target.scheme == Scheme::Https;
    Ok(Plan { terms, target, inspected, websocket })
}

fn attempt<'a>(target: &'a Target, method: &'a Method, path: &'a str) -> Attempt<'a> {
    let via = Via::Request { scheme: target.scheme, method: method.as_str(), path };
    Attempt { host: &target.host, port: target.port, via }
}

/// Sends the request on, and its answer back.
async fn carry(
    session: &Session,
    plan: Plan,
    mut request: Request<Incoming>,
) -> Result<Response<Inwards>, Refusal> {
    let outlet = &session.outlet;
    let Plan { terms, target, inspected, websocket } = plan;
    let client = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    let attempt = attempt(&target, &method, &path);
    let injected = prepare(&terms, &mut parts, &target, &outlet.shared().via)?;
    if let Some(key) = &websocket {
        websocket::ask(&mut parts, key, injected);
    }
    let tally = Tally::begin(outlet, &target.host, target.port, Some(method.as_str()));
    let body = Outwards::new(body, Arc::clone(&tally), &outlet.shared().limits);
    let sent = send(outlet, &terms, &attempt, &target, Request::from_parts(parts, body), &tally).await;
    let (mut response, connection) = sent.inspect_err(|_| tally.failed())?;
    let echoes = injected.then_some(&terms.echoes);
    let address = connection.address;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let fail = || {
            tally.failed();
            let failure = Failure::BadAnswer;
            Refusal::Upstream { host: target.host.clone(), port: target.port, failure }
        };
        // Nobody leaves HTTP by an answer that nobody asked for, or that is for something else.
        let taken = websocket.as_ref().is_some_and(|key| websocket::is_taken(response.headers(), key));
        if !taken {
            return Err(fail());
        }
        let upstream = hyper::upgrade::on(&mut response).await.map_err(|_| fail())?;
        outlet.record(&terms, &attempt, address, inspected);
        tally.answered(response.status().as_u16());
        let mask = echoes.cloned();
        let mut response = response.map(|_| Inwards::none());
        response.extensions_mut().clear();
        clean(response.headers_mut(), echoes);
        websocket::switch(response.headers_mut());
        session.suspicion.leave();
        let switched = Switched { client, upstream, target, method, path, address, tally, mask };
        *session.switched.lock().unwrap_or_else(PoisonError::into_inner) = Some(switched);
        return Ok(response);
    }
    outlet.record(&terms, &attempt, address, inspected);
    tally.answered(response.status().as_u16());
    Ok(returned(response, Kept { connection, key: target, outlet: Arc::clone(outlet) }, tally, echoes))
}

/// Makes of the client's head the one that is sent. Says whether a secret was added.
fn prepare(terms: &Agreed, parts: &mut Parts, target: &Target, via: &str) -> Result<bool, Refusal> {
    headers::strip(&mut parts.headers);
    // The library answers this itself when it reads the body.
    parts.headers.remove(EXPECT);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let bad = |_| Refusal::from(BadRequest::NotAProxyRequest);
    parts.uri = path.parse::<Uri>().map_err(bad)?;
    parts.version = hyper::Version::HTTP_11;
    parts.headers.insert(HOST, HeaderValue::from_str(&target.authority()).expect("a host is ASCII"));
    headers::add_via(&mut parts.headers, via);
    let injected = credentials::inject(&terms.credentials, target.scheme, &target.host, target.port, parts)?;
    if injected {
        // Only what is not compressed can be searched for the secret when it comes back.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    Ok(injected)
}

async fn send(
    outlet: &Arc<Outlet>,
    terms: &Agreed,
    attempt: &Attempt<'_>,
    target: &Target,
    request: Request<Outwards>,
    tally: &Tally,
) -> Result<(Response<Incoming>, Connection), Refusal> {
    let fail = |failure| Refusal::Upstream { host: target.host.clone(), port: target.port, failure };
    let mut request = request;
    // A connection that was kept may have ended in the meantime; what it did not take goes over a new one. One that is
    // to become something else is always new.
    let mut kept = match request.headers().contains_key(UPGRADE) {
        true => None,
        false => {
            outlet.pool().take(target, |address| outlet.at_address(terms, attempt, address).is_ok()).await
        }
    };
    loop {
        let is_new = kept.is_none();
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => pool::open(outlet, terms, attempt, target.scheme).await?,
        };
        let answer = connection.sender.try_send_request(request);
        let answered = tokio::select! {
            answered = answer => answered,
            // Dropping the answer ends the connection, and with it what was sent.
            () = silence(tally, outlet.shared().limits.answer_deadline) => return Err(fail(Failure::AnswerTimeout)),
        };
        match answered {
            Ok(response) => return Ok((response, connection)),
            Err(mut error) => match error.take_message() {
                Some(unsent) if !is_new => request = unsent,
                _ => return Err(body::stopped(&error.into_error()).unwrap_or_else(fail)),
            },
        }
    }
}

/// Passes when neither the request moves nor its answer comes for this long.
async fn silence(tally: &Tally, patience: Duration) {
    loop {
        let before = tally.bytes_sent();
        tokio::time::sleep(patience).await;
        if tally.bytes_sent() == before {
            return;
        }
    }
}

/// The answer as the client gets it. Redirects are the client's to follow, through the same decisions.
fn returned(
    response: Response<Incoming>,
    kept: Kept,
    tally: Arc<Tally>,
    echoes: Option<&Redaction>,
) -> Response<Inwards> {
    let (mut parts, body) = response.into_parts();
    clean(&mut parts.headers, echoes);
    // The library keeps the words behind the status here, and would repeat them whatever they hold.
    parts.extensions.clear();
    parts.version = hyper::Version::HTTP_11;
    let mask = echoes.map(|echoes| echoes.stream(Content::Binary));
    Response::from_parts(parts, Inwards::new(body, kept, tally, mask))
}

/// Removes from an answer's head what belongs to the connection it came over, and secrets that come back in it.
fn clean(headers: &mut HeaderMap, echoes: Option<&Redaction>) {
    headers::strip(headers);
    let Some(echoes) = echoes else { return };
    for value in headers.values_mut() {
        let (masked, count) = echoes.whole(Content::Binary, value.as_bytes());
        if count > 0 {
            *value = HeaderValue::from_bytes(&masked).unwrap_or(HeaderValue::from_static(""));
        }
    }
}
