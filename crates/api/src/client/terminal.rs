//! A terminal in a sandbox, over a WebSocket.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cubicle_model::{ExecId, Exit, SandboxId, TtySize};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::Method;
use hyper::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::query::Query;
use super::{Call, Client, ClientError};

/// What is to be opened.
#[derive(Debug, Clone, Default)]
pub struct TerminalRequest {
    pub size: TtySize,
    /// For the shell; a login shell when absent.
    pub command: Option<String>,
    pub cwd: Option<String>,
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Where keys go in.
#[derive(Debug)]
pub struct Keyboard {
    client: Client,
    to: SplitSink<Socket, Message>,
}

/// Where output comes out.
#[derive(Debug)]
pub struct Screen {
    client: Client,
    from: SplitStream<Socket>,
}

/// What a screen shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// Comes first.
    Started(ExecId),
    Output(Bytes),
    /// Everything was shown.
    Ended(Exit),
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    ExecId(ExecId),
    Exit(Exit),
}

impl Client {
    /// Dropping both halves hangs up, as closing the window of a terminal does.
    pub async fn open_terminal(
        &self,
        sandbox: SandboxId,
        asked: &TerminalRequest,
    ) -> Result<(Keyboard, Screen), ClientError> {
        let path = Query::default()
            .with("rows", asked.size.rows)
            .with("columns", asked.size.columns)
            .maybe("command", asked.command.as_ref())
            .maybe("cwd", asked.cwd.as_ref())
            .on(&format!("/api/v1/sandboxes/{sandbox}/terminal"));
        let key = STANDARD.encode(self.random_bits());
        let call = Call::new(Method::GET, path)
            .with(CONNECTION, "upgrade")
            .with(UPGRADE, "websocket")
            .with(SEC_WEBSOCKET_VERSION, "13")
            .with(SEC_WEBSOCKET_KEY, key.as_str());
        let response = self.send(call).await?.response;
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT).and_then(|accept| accept.to_str().ok());
        if accepted != Some(derive_accept_key(key.as_bytes()).as_str()) {
            return Err(self.not_understood("it opens no WebSocket"));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| self.connections.broken(error))?;
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
        let (to, from) = socket.split();
        Ok((Keyboard { client: self.clone(), to }, Screen { client: self.clone(), from }))
    }
}

impl Keyboard {
    pub async fn keys(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.send(Message::Binary(bytes.into())).await
    }

    pub async fn resize(&mut self, size: TtySize) -> Result<(), ClientError> {
        let text = serde_json::json!({ "resize": size }).to_string();
        self.send(Message::Text(text.into())).await
    }

    pub async fn hang_up(&mut self) -> Result<(), ClientError> {
        self.send(Message::Close(None)).await
    }

    async fn send(&mut self, message: Message) -> Result<(), ClientError> {
        self.to.send(message).await.map_err(|error| self.client.connections.broken(error))
    }
}

impl Screen {
    /// The next thing to show; none when the terminal was closed. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<Shown>, ClientError> {
        loop {
            let message = match self.from.next().await {
                None | Some(Ok(Message::Close(_))) => return Ok(None),
                Some(message) => message.map_err(|error| self.client.connections.broken(error))?,
            };
            match message {
                Message::Binary(bytes) => return Ok(Some(Shown::Output(bytes))),
                Message::Text(text) => {
                    let told =
                        serde_json::from_str(&text).map_err(|error| self.client.not_understood(error))?;
                    return Ok(Some(match told {
                        Told::ExecId(id) => Shown::Started(id),
                        Told::Exit(exit) => Shown::Ended(exit),
                    }));
                }
                Message::Close(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}
