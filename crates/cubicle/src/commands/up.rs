//! `cubicle up`: the control plane in one process.

mod clock;
mod code;
mod egress;
mod home;
mod sealing;
mod shared;
mod workers;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Readiness};
use cubicle_egress::redact::Shapes;
use cubicle_egress::secret::Secret;
use cubicle_model::pool::PoolSpec;
use cubicle_model::template::Recipe;
use cubicle_model::{Fault, Kind, Root, Scope, TemplateRef};
use cubicle_server::{
    KeySecret, LogMasks, Server, Settings, SpanCounts, Surroundings, TokenSettings, Variables,
    WebhookSettings, hash_of_secret,
};
use cubicle_store::{Actor, Context as StoreContext, Key, Store};
use tokio::net::TcpListener;

use crate::args::Up;
use crate::context::{Context, fill_with_random, random_bits};
use crate::data_dir;
use crate::failure::Ending;
use crate::settings;
use crate::signals::Signals;
use crate::traces::{self, Sending};
use clock::Clock;
use home::Home;

const LISTEN: &str = "127.0.0.1:7878";
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn up(args: &Up, context: &Context) -> Result<Ending, Fault> {
    let asked = args.settings().over(context.settings.server.clone());
    let random: cubicle_store::Random = Arc::new(fill_with_random);
    let span_counts = asked.otlp_endpoint.is_some().then(SpanCounts::default);
    let log_masks = log_masks(&asked)?;
    let traces = start_traces(&asked, &random, span_counts.as_ref(), &log_masks)?;
    let listen = match asked.listen {
        Some(listen) => listen,
        None => LISTEN.parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?,
    };
    if args.without_keys && !listen.ip().is_loopback() {
        return Err(Fault::new(
            Kind::Denied,
            format!("without keys anybody who reaches {listen} could do everything"),
        )
        .hint("listen on 127.0.0.1, or leave --without-keys out"));
    }
    let tokens = TokenSettings::parse(asked.tokens.clone())?;
    // Before privileges end: the file may be for root alone.
    let named_keys = sealing::named(&asked)?;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Fault::new(Kind::Conflict, format!("cannot listen on {listen}: {error}"))
            .hint("something else has this address; name another with --listen")
    })?;
    let listen = listener.local_addr().unwrap_or(listen);
    let address = asked.address.clone().unwrap_or_else(|| format!("http://{listen}"));

    crate::limits::allow_many_descriptors();
    data_dir::prepare(context.data_dir())?;
    let shared_dir = shared::named(context)?;
    let options = cubicle_backend_local::Options {
        data_dir: context.data_dir().to_owned(),
        mountable: shared_dir.iter().cloned().collect(),
        readiness: Readiness::ManySandboxes,
    };
    let backend = LocalBackend::open(options).await?;
    let prepared = code::prepare(context, backend.facts().service_uid).await?;
    if let Some(path) = &shared_dir {
        shared::hand_over(path, backend.facts().service_uid)?;
    }
    backend.drop_rights()?;
    let home = Home::open(context.data_dir())?;
    let probed = backend.probe().await;
    let isolation = cubicle_model::Trust::default().default_isolation();
    if let Some(unmet) = probed.level(isolation).and_then(|level| level.unmet.first()) {
        return Err(Fault::new(Kind::Denied, format!("sandboxes cannot be made here: {}", unmet.because))
            .hint(unmet.fix.clone()));
    }
    backend.gc().await?;

    let store = open_store(&home, asked.db_url.as_deref(), &random).await?;
    let sealing_keys = match named_keys {
        Some(keys) => keys,
        None => sealing::own(&home, &store).await?,
    };
    let clock = Clock::start(home.path(), &context.environment);
    let (steady, wall) = (Arc::clone(&clock), Arc::clone(&clock));
    let surroundings = Surroundings {
        clock: Arc::new(move || steady.now()),
        wall_clock: Arc::new(move || wall.wall()),
        random,
        variable: variables(context),
        at_step: deadly_step(context),
    };
    let egress = match context.settings.egress.enabled {
        Some(false) => None,
        _ => Some(egress::settings(context, home.path(), listen, asked.log.clone(), clock.wall()).await?),
    };
    let workers = workers::settings(args, context, listen)?;
    let settings = Settings {
        address: address.clone(),
        capacity: asked.capacity.unwrap_or(200),
        longest_queue: asked.longest_queue.unwrap_or(1000),
        lease_ttl_seconds: seconds(asked.lease_ttl, 600)?,
        exec_timeout_seconds: asked.sandbox_timeout.map(|timeout| timeout.as_secs_f64()),
        blobs: home.blobs(),
        shared: context.shared_dir(),
        journal_retention: asked.journal_retention.unwrap_or(2 * DAY),
        record_retention: asked.record_retention.unwrap_or(7 * DAY),
        keyless: args.without_keys,
        tokens: tokens.clone(),
        requests_per_second: u32::try_from(asked.requests_per_second.unwrap_or(2000)).unwrap_or(u32::MAX),
        link_secret: home.link_secret()?,
        sealing_keys,
        egress,
        code: code::settings(context, prepared, &clock).await?,
        workers: workers.clone(),
        webhooks: webhooks(&context.settings.webhooks),
        log_masks,
        sweep_every: Duration::from_secs(15),
        drain: Duration::from_secs(10),
        span_counts,
    };
    store.join(home.node, address.clone(), clock.now()).await?;
    let pool = u32::try_from(asked.pool_size.unwrap_or(4)).unwrap_or(u32::MAX);
    first_things(&store, &home, &clock, pool, asked.image.map(Root::Directory)).await?;
    let own = StoreContext { node: home.node, now: clock.now(), actor: Actor::system() };
    let has_gvisor =
        probed.level(cubicle_model::Isolation::Gvisor).is_some_and(|level| level.unmet.is_empty());
    workers::ensure_template(
        &store,
        own,
        &workers,
        &context.settings.workers.resources,
        backend.facts().cgroups,
        has_gvisor,
    )
    .await?;
    keep_time(&clock);
    forget_the_start();
    let mut signals = Signals::catch()?;
    let server = Server::start(store, Arc::new(backend), home.node, settings, surroundings).await?;
    home.note_address(listen)?;
    greet(&home, &address, args.without_keys, tokens.as_ref(), pool, isolation, context);
    let mut is_gone = false;
    let stop = async {
        tokio::select! {
            // A signal is not lost when the directory goes at the same moment: the next one ends the process.
            _ = signals.next_ending() => {
                note("Stopping; sandboxes and what runs in them go on. Once more to end at once.");
            }
            () = home.gone() => is_gone = true,
        }
        // The second signal does not wait for anybody.
        tokio::spawn(async move {
            let number = signals.next_ending().await;
            std::process::exit(128 + number);
        });
    };
    server.serve(listener, stop).await;
    if is_gone {
        server.abandon().await;
        let text = format!("{} was removed under the server", context.data_dir().display());
        return Err(Fault::new(Kind::Conflict, text)
            .hint("its sandboxes were destroyed; start it again for a new data directory"));
    }
    home.forget_address();
    clock.keep();
    if let Some(traces) = traces {
        traces.finish().await;
    }
    Ok(Ending::Code(0))
}

fn webhooks(asked: &settings::Webhooks) -> WebhookSettings {
    let usual = WebhookSettings::default();
    let secrets = asked.secrets.iter().flatten().map(|secret| Secret::new(secret.expose()));
    WebhookSettings {
        path: asked.path.clone().unwrap_or(usual.path),
        secrets: secrets.collect(),
        allow: asked.allow.clone().unwrap_or(usual.allow),
        pauses: asked.retry_pauses.clone().unwrap_or(usual.pauses),
        timeout: asked.timeout.unwrap_or(usual.timeout),
    }
}

/// The environment as it was when the program started.
fn variables(context: &Context) -> Variables {
    let environment = context.environment.clone();
    Arc::new(move |name| environment.bytes(name))
}

/// What the log leaves out. The server adds the secrets that it comes to know.
fn log_masks(asked: &settings::Server) -> Result<LogMasks, Fault> {
    let shapes = match &asked.redact_patterns {
        Some(given) => Shapes::parse(given),
        None => Ok(Shapes::usual()),
    };
    shapes.map(LogMasks::new).map_err(|error| Fault::new(Kind::Invalid, error.to_string()))
}

/// Starts the log and, where there is a collector, what sends spans to it.
fn start_traces(
    asked: &settings::Server,
    random: &cubicle_store::Random,
    counts: Option<&SpanCounts>,
    masks: &LogMasks,
) -> Result<Option<Sending>, Fault> {
    let (Some(endpoint), Some(counts)) = (&asked.otlp_endpoint, counts) else {
        crate::log::start(asked.log.as_deref(), None, masks.clone())?;
        return Ok(None);
    };
    let destination = traces::Destination {
        endpoint: endpoint.clone(),
        headers: asked.otlp_headers.clone(),
        service: asked.service_name.clone().unwrap_or_else(|| "cubicle".into()),
    };
    let (recorder, exporter) = traces::to(destination, Arc::clone(random), counts.clone(), masks.clone())?;
    crate::log::start(asked.log.as_deref(), Some(recorder), masks.clone())?;
    Ok(Some(exporter.start()))
}

/// For people, beside the log.
fn note(line: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// When the server has started and filled its pool, most of the program is not needed any more. Ends by itself.
fn forget_the_start() {
    tokio::spawn(async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let released = tokio::task::spawn_blocking(cubicle_sys::memory::release_program).await;
        if let Ok(Err(error)) = released {
            tracing::debug!(%error, "pages that only the start needed stay");
        }
    });
}

/// Ends with the process, which keeps the time once more.
fn keep_time(clock: &Arc<Clock>) {
    let clock = Arc::clone(clock);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(10)).await;
            clock.keep();
        }
    });
}

/// In a debug build `CUBICLE_KILL_AT=sandbox_made:3` ends the process at the third time of this step, for the crash suite.
fn deadly_step(context: &Context) -> Arc<dyn Fn(&'static str) + Send + Sync> {
    let asked = context.environment.text("CUBICLE_KILL_AT").filter(|_| cfg!(debug_assertions));
    let Some((name, count)) = asked.as_deref().and_then(|asked| asked.split_once(':')) else {
        return Arc::new(|_| {});
    };
    let (name, left) = (name.to_owned(), AtomicU32::new(count.parse().unwrap_or(1)));
    Arc::new(move |step| {
        if step == name && left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    })
}

fn seconds(span: Option<Duration>, default: u32) -> Result<u32, Fault> {
    let Some(span) = span else { return Ok(default) };
    u32::try_from(span.as_secs())
        .ok()
        .filter(|seconds| *seconds > 0)
        .ok_or_else(|| Fault::new(Kind::Invalid, "a lease lives at least a second and at most years"))
}

async fn open_store(home: &Home, url: Option<&str>, random: &cubicle_store::Random) -> Result<Store, Fault> {
    let random = Arc::clone(random);
    let (url, file) = (url.map(str::to_owned), home.database());
    // Blocks, and PostgreSQL's client brings its own runtime.
    let open = move || match url.as_deref() {
        None => Store::open_sqlite(&file, random),
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
            Store::open_postgres(url, random)
        }
        Some(url) => match url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")) {
            Some(path) => Store::open_sqlite(std::path::Path::new(path), random),
            None => Err(Fault::new(Kind::Invalid, "DB_URL is neither of SQLite nor of PostgreSQL").hint(
                "write postgres://user:password@host/database, or sqlite:///path/to/file, or leave it out",
            )),
        },
    };
    tokio::task::spawn_blocking(open)
        .await
        .map_err(|error| Fault::new(Kind::Internal, "opening the database panicked").because(error))?
}

/// What a new deployment begins with: a tenant, a template, and a key for whoever started it.
async fn first_things(
    store: &Store,
    home: &Home,
    clock: &Clock,
    pool: u32,
    root: Option<Root>,
) -> Result<(), Fault> {
    let context = || StoreContext { node: home.node, now: clock.now(), actor: Actor::system() };
    let name = |text: &str| text.parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")));
    store.ensure_tenant(context(), name("default")?).await?;
    let at = TemplateRef { owner: None, name: name("default")? };
    let recipe = match store.template(at.clone()).await? {
        Some(template) => template.recipe,
        None => Recipe::default(),
    };
    let recipe = Recipe {
        pool: PoolSpec {
            size: pool,
            min_idle: recipe.pool.min_idle.min(pool),
            ceiling: recipe.pool.ceiling.max(pool),
        },
        root: root.unwrap_or(recipe.root),
        ..recipe
    };
    recipe.check().map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
    store.put_template(context(), at, recipe, None).await?;

    let known = match home.first_key()? {
        Some(secret) => store.key_by_hash(hash_of_secret(&secret)).await?.is_some(),
        None => false,
    };
    if known {
        return Ok(());
    }
    let mut bits = [0; 32];
    fill_with_random(&mut bits);
    let secret = KeySecret::from_random(bits);
    let key = Key {
        id: cubicle_model::KeyId::from_random(random_bits()),
        tenant: name("default")?,
        user: "admin".parse().map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?,
        label: "first key".into(),
        scopes: Scope::ALL.into_iter().collect(),
        requests_per_second: None,
        created_at: clock.now(),
        expires_at: None,
        revoked_at: None,
    };
    // The file first: a key that nobody has could never be used.
    home.write_first_key(secret.expose())?;
    store.create_key(context(), key, hash_of_secret(secret.expose())).await?;
    Ok(())
}

fn greet(
    home: &Home,
    address: &str,
    without_keys: bool,
    tokens: Option<&TokenSettings>,
    pool: u32,
    isolation: cubicle_model::Isolation,
    context: &Context,
) {
    note(&format!("Cubicle is up at {address}"));
    note(&format!("  isolation  {isolation}, {pool} sandboxes kept ready"));
    match without_keys {
        true => note("  keys       none are asked for: everybody on this machine can do everything"),
        false => note(&format!("  first key  {}", home.key_file().display())),
    }
    if let Some(tokens) = tokens {
        note(&format!("  tokens     {tokens}"));
    }
    note(&format!(
        "  try        cubicle{} exec -- python3 -c 'print(6 * 7)'",
        context.flags_to_find_it_again()
    ));
    note(&format!("  API        {address}/api/v1/openapi.json"));
}
