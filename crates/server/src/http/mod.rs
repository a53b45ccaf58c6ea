//! The edge: from HTTP to the use cases and back. Nothing here decides.

mod admin;
mod contexts;
mod document;
mod egress;
mod elsewhere;
mod execs;
mod execute;
mod files;
mod gate;
mod hand_on;
mod leases;
mod links;
mod mcp;
mod ports;
mod problem;
mod range;
mod request;
mod sandboxes;
mod secrets;
mod seed;
mod stream;
mod strict;
mod system;
mod tasks;
mod templates;
mod terminal;
mod tools;
mod webhooks;
mod workspace;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tracing::{debug, info, warn};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::webhooks::WebhookSettings;

/// A client that is slower than this to send its headers, or the next request, is sent away.
const HEADER_PATIENCE: Duration = Duration::from_secs(30);
const MOST_CONNECTIONS: usize = 10_000;

fn router() -> OpenApiRouter<Arc<App>> {
    let v1 = OpenApiRouter::new()
        .routes(routes!(leases::create, leases::list))
        .routes(routes!(leases::get, leases::release))
        .routes(routes!(leases::heartbeat))
        .routes(routes!(egress::of_lease, egress::change))
        .routes(routes!(egress::of_exec))
        .routes(routes!(egress::bundles))
        .routes(routes!(egress::explain))
        .routes(routes!(sandboxes::list))
        .routes(routes!(sandboxes::get))
        .routes(routes!(sandboxes::receipt))
        .routes(routes!(sandboxes::metrics))
        .routes(routes!(execs::create, execs::list_of_sandbox))
        .routes(routes!(execs::one_shot, execs::list))
        .routes(routes!(execs::get, execs::end))
        .routes(routes!(execs::output))
        .routes(routes!(execs::stdin))
        .routes(routes!(execs::signal))
        .routes(routes!(execs::resize))
        .routes(routes!(execute::anywhere))
        .routes(routes!(execute::in_sandbox))
        .routes(routes!(execute::health))
        .routes(routes!(execute::envs_of_sandbox, execute::create_env_in_sandbox))
        .routes(routes!(execute::delete_env_in_sandbox))
        .routes(routes!(execute::envs, execute::create_env))
        .routes(routes!(execute::delete_env))
        .routes(routes!(contexts::create, contexts::list))
        .routes(routes!(contexts::get, contexts::delete))
        .routes(routes!(contexts::interrupt))
        .routes(routes!(contexts::restart))
        .routes(routes!(contexts::execute))
        .routes(routes!(files::read, files::write, files::remove))
        .routes(routes!(files::list))
        .routes(routes!(files::stat))
        .routes(routes!(files::make_directory))
        .routes(routes!(files::rename))
        .routes(routes!(files::unpack, files::pack))
        .routes(routes!(files::watch))
        .routes(routes!(tasks::create, tasks::list))
        .routes(routes!(tasks::get))
        .routes(routes!(tasks::result))
        .routes(routes!(tasks::cancel))
        .routes(routes!(tasks::retry))
        .routes(routes!(tasks::events))
        .routes(routes!(tasks::files))
        .routes(routes!(tasks::file))
        .routes(routes!(tasks::link))
        .routes(routes!(tools::list))
        .routes(routes!(tools::call))
        .routes(routes!(tools::call_anywhere))
        .routes(routes!(workspace::list))
        .routes(routes!(workspace::read, workspace::write, workspace::delete))
        .routes(routes!(workspace::rename))
        .routes(routes!(workspace::versions))
        .routes(routes!(workspace::list_skills, workspace::create_skill))
        .routes(routes!(workspace::get_skill))
        .routes(routes!(templates::list))
        .routes(routes!(templates::get, templates::put, templates::delete))
        .routes(routes!(webhooks::create, webhooks::list))
        .routes(routes!(webhooks::get, webhooks::change, webhooks::delete))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::delivery))
        .routes(routes!(webhooks::replay))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::get, secrets::put, secrets::delete))
        .routes(routes!(admin::create_tenant, admin::list_tenants))
        .routes(routes!(admin::get_tenant, admin::replace_tenant))
        .routes(routes!(admin::create_key, admin::list_keys))
        .routes(routes!(admin::get_key, admin::revoke_key))
        .routes(routes!(admin::audit))
        .routes(routes!(admin::audit_heads))
        .routes(routes!(admin::who_am_i))
        .routes(routes!(stream::events))
        .routes(routes!(links::list_artifacts))
        .routes(routes!(links::get_artifact))
        .routes(routes!(links::artifact_content))
        .routes(routes!(links::artifact_link))
        .routes(routes!(ports::link));
    OpenApiRouter::with_openapi(document::Document::openapi())
        .nest("/api/v1", v1)
        .routes(routes!(stream::everything))
        .routes(routes!(webhooks::worker_complete))
        .routes(routes!(seed::acquire))
        .routes(routes!(seed::release))
        .routes(routes!(mcp::metadata))
        .routes(routes!(mcp::metadata_of_mcp))
        .routes(routes!(system::health))
        .routes(routes!(system::ready))
        .routes(routes!(system::metrics))
}

/// The document that `/api/v1/openapi.json` serves.
pub fn openapi() -> String {
    document::text(&document::complete(router().split_for_parts().1))
}

pub(crate) fn routes(app: &Arc<App>) -> Router {
    let (router, document) = router().split_for_parts();
    let document = Arc::new(document::text(&document::complete(document)));
    let router = match app.settings.webhooks.path.as_str() {
        WebhookSettings::PATH => router,
        elsewhere => router.route(elsewhere, axum::routing::post(webhooks::worker_complete)),
    };
    router
        .merge(terminal::routes())
        .merge(ports::routes())
        .merge(mcp::routes(app))
        .route("/api/v1/openapi.json", axum::routing::get(move || system::openapi(Arc::clone(&document))))
        .fallback(system::nothing_here)
        .method_not_allowed_fallback(system::no_such_method)
        .layer(DefaultBodyLimit::max(request::LARGEST_JSON))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(app), gate::gate))
        .with_state(Arc::clone(app))
}

pub(crate) async fn serve(app: Arc<App>, listener: TcpListener, stop: impl Future<Output = ()>) {
    let routes = routes(&app).into_make_service_with_connect_info::<std::net::SocketAddr>();
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
    let graceful = GracefulShutdown::new();
    let room = Arc::new(tokio::sync::Semaphore::new(MOST_CONNECTIONS));
    let mut stop = std::pin::pin!(stop);
    let mut routes = routes;
    loop {
        let accepted = tokio::select! {
            // Nothing is lost: a connection that was not accepted is refused.
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, most likely; they become fewer.
                warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            warn!(%from, "too many connections");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let service = match tower::Service::call(&mut routes, from).await {
            Ok(service) => service,
            Err(never) => match never {},
        };
        let connection = builder
            .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service))
            .into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%from, %error, "a connection ended badly");
            }
            drop(permit);
        });
    }
    drop(listener);
    app.stopping.cancel();
    info!("finishing what is under way");
    if tokio::time::timeout(app.settings.drain, graceful.shutdown()).await.is_err() {
        warn!("some requests were cut off");
    }
}
