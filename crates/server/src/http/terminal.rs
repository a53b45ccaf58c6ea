//! A terminal over a WebSocket: bytes are the terminal's, text messages are JSON, as `{"resize": {"rows": 40, "columns": 120}}`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::get;
use cubicle_guest::journal::Kind as RecordKind;
use cubicle_model::{Command, ExecSpec, Fault, Kind, SandboxId, Scope, Stdin, TtySize};
use futures_util::{SinkExt, StreamExt};
use tracing::debug;

use super::problem::Answer;
use super::request::{Id, Query};
use crate::app::execs::{ExecRequest, Program};
use crate::app::{App, Caller};

#[derive(Debug, serde::Deserialize)]
struct Asked {
    /// For the shell; a login shell when absent.
    command: Option<String>,
    rows: Option<u16>,
    columns: Option<u16>,
    cwd: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Control {
    Resize(TtySize),
    Signal(String),
}

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/api/v1/sandboxes/{id}/terminal", get(open))
}

async fn open(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(asked): Query<Asked>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Answer<Response> {
    caller.must(Scope::Run)?;
    let upgrade = upgrade.map_err(|rejection| Fault::new(Kind::Invalid, rejection.body_text()))?;
    app.in_use(&caller, id).await?;
    let size = TtySize { rows: asked.rows.unwrap_or(24), columns: asked.columns.unwrap_or(80) };
    let command = match asked.command {
        Some(command) => Command::Shell(command),
        None => Command::Argv(vec!["/bin/bash".into(), "-l".into()]),
    };
    let spec = ExecSpec { cwd: asked.cwd, stdin: Stdin::Stream, tty: Some(size), ..ExecSpec::new(command) };
    let request =
        ExecRequest { spec, program: Program::Command, policy: None, background: true, output_limit: 0 };
    let told = app.create_exec(&caller, id, request).await?;
    Ok(upgrade.on_upgrade(move |socket| async move {
        if let Err(fault) = converse(&app, &caller, told.exec, socket).await {
            debug!(error = %fault, "a terminal ended badly");
        }
    }))
}

async fn converse(
    app: &Arc<App>,
    caller: &Caller,
    exec: cubicle_store::Exec,
    socket: WebSocket,
) -> Result<(), Fault> {
    let id = exec.id;
    let mut output = app.output(exec, 0).await?;
    let (mut to, mut from) = socket.split();
    let hello = serde_json::json!({ "exec_id": id }).to_string();
    let gone = |_| Fault::new(Kind::Unavailable, "whoever had the terminal has gone");
    to.send(Message::Text(hello.into())).await.map_err(gone)?;
    let show = async {
        while let Some(shared) = output.next().await? {
            let frame = &shared.frame;
            let message = match frame.kind {
                RecordKind::Stdout | RecordKind::Stderr => Message::Binary(frame.bytes.clone()),
                RecordKind::Exit => {
                    let exited: serde_json::Value = serde_json::from_slice(&frame.bytes).unwrap_or_default();
                    Message::Text(serde_json::json!({ "exit": exited["exit"] }).to_string().into())
                }
                _ => continue,
            };
            to.send(message).await.map_err(gone)?;
        }
        // The whole output has been shown.
        let _ = to.send(Message::Close(Some(CloseFrame { code: 1000, reason: "ended".into() }))).await;
        Ok::<(), Fault>(())
    };
    let listen = async {
        while let Some(Ok(message)) = from.next().await {
            match message {
                Message::Binary(bytes) => app.stdin(caller, id, &bytes, false).await?,
                Message::Text(text) => match serde_json::from_str::<Control>(&text) {
                    Ok(Control::Resize(size)) => app.resize(caller, id, size).await?,
                    Ok(Control::Signal(name)) => {
                        app.signal(caller, id, cubicle_guest::wire::SignalName::Name(name)).await?;
                    }
                    Err(error) => return Err(Fault::new(Kind::Invalid, error.to_string())),
                },
                Message::Close(_) => break,
                Message::Ping(_) | Message::Pong(_) => {}
            }
        }
        Ok::<(), Fault>(())
    };
    let ended = tokio::select! {
        // The program ended: nobody needs to listen any more.
        ended = show => ended,
        // Whoever had the terminal has gone: its program gets a hang-up, as it would from any terminal.
        listened = listen => {
            let hang_up = cubicle_guest::wire::SignalName::Name("HUP".into());
            let _ = app.signal(caller, id, hang_up).await;
            listened
        }
    };
    ended
}
