//! A model service on loopback that follows a script: real AI coding agents run against it in tests.
//!
//! It speaks Anthropic's Messages and Gemini's `streamGenerateContent`. It keeps no conversation: which step comes next is seen
//! from how many tool results the request holds, so that retries and runs at the same time do no harm.

mod anthropic;
mod gemini;
mod http;
mod script;

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

pub use http::Request;
pub use script::{Call, Conversation, Fault, Script, Step, Usage};

/// The service. It ends when this is dropped.
#[derive(Debug)]
pub struct ScriptedModel {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    script: Script,
    /// What is left of the script's faults.
    faults: Mutex<Vec<Fault>>,
    requests: Mutex<Vec<Request>>,
    ended: AtomicBool,
}

impl ScriptedModel {
    pub fn start(script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let faults = script.faults.iter().flat_map(|fault| vec![fault.clone(); fault.times()]).collect();
        let shared = Arc::new(Shared {
            script,
            faults: Mutex::new(faults),
            requests: Mutex::new(Vec::new()),
            ended: AtomicBool::new(false),
        });
        let service = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                if service.ended.load(Ordering::SeqCst) {
                    return;
                }
                let service = Arc::clone(&service);
                // A client that hangs up is none of our business.
                thread::spawn(move || _ = service.serve(connection));
            }
        });
        Ok(Self { address, shared })
    }

    /// What an agent takes for the service's address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was asked so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("nobody panics with the lock").clone()
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the listener, which then sees that it is over.
        _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, connection: TcpStream) -> io::Result<()> {
        connection.set_nodelay(true)?;
        let mut writer = connection.try_clone()?;
        let mut reader = BufReader::new(connection);
        while let Some(request) = http::read(&mut reader)? {
            self.requests.lock().expect("nobody panics with the lock").push(request.clone());
            if !self.answer(&request, &mut writer)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether the connection may go on.
    fn answer(&self, request: &Request, to: &mut TcpStream) -> io::Result<bool> {
        let path = request.path.split('?').next().unwrap_or_default();
        let dialect: &dyn Dialect = match path {
            _ if request.method != "POST" => return http::json(to, 200, &json!({}), &[]),
            path if path.ends_with("/messages/count_tokens") => {
                return http::json(to, 200, &json!({"input_tokens": 42}), &[]);
            }
            path if path.ends_with(":countTokens") => {
                return http::json(to, 200, &json!({"totalTokens": 42}), &[]);
            }
            path if path.ends_with("/messages") => &anthropic::Anthropic,
            path if path.ends_with("enerateContent") => &gemini::Gemini,
            _ => return http::json(to, 404, &json!({"error": "not part of the script"}), &[]),
        };
        let asked = &request.body;
        let reply = match dialect.offers_tools(asked) {
            true => self.script.reply(dialect.name(), &dialect.messages(asked)),
            // Titles and the like, which are asked for on the side.
            false => Reply { text: r#"{"title":"scripted"}"#.into(), calls: Vec::new() },
        };
        let mut faults = self.faults.lock().expect("nobody panics with the lock");
        let fault = if faults.is_empty() { None } else { Some(faults.remove(0)) };
        drop(faults);
        if let Some(Fault::Status { status, retry_after, .. }) = fault {
            let retry_after = retry_after.to_string();
            return http::json(to, status, &dialect.error(status), &[("retry-after", &retry_after)]);
        }
        match dialect.is_streamed(request) {
            true => stream(to, &dialect.events(request, &reply, &self.script.usage), fault.as_ref()),
            false => whole(to, &dialect.whole(request, &reply, &self.script.usage), fault.as_ref()),
        }
    }
}

/// Whether the connection may go on.
fn stream(to: &mut TcpStream, events: &[String], fault: Option<&Fault>) -> io::Result<bool> {
    http::begin_stream(to)?;
    match fault {
        Some(Fault::Hang { .. }) => {
            http::chunk(to, &events[0])?;
            wait_for_the_end(to)
        }
        Some(Fault::WrongJson { .. }) => {
            http::chunk(to, &events[0])?;
            http::chunk(to, "data: {\"type\": \"content_block_st\n\n")?;
            http::end_stream(to)?;
            Ok(true)
        }
        Some(Fault::Cut { .. }) => {
            for event in &events[..events.len().div_ceil(2)] {
                http::chunk(to, event)?;
            }
            Ok(false)
        }
        Some(Fault::Status { .. }) | None => {
            for event in events {
                http::chunk(to, event)?;
            }
            http::end_stream(to)?;
            Ok(true)
        }
    }
}

/// The same for an answer in one piece: who cannot read streams asks for it so.
fn whole(to: &mut TcpStream, answer: &Value, fault: Option<&Fault>) -> io::Result<bool> {
    let text = answer.to_string();
    match fault {
        Some(Fault::Hang { .. }) => wait_for_the_end(to),
        Some(Fault::WrongJson { .. }) => http::text(to, 200, &text[..text.len() / 2], text.len() / 2, &[]),
        Some(Fault::Cut { .. }) => {
            http::text(to, 200, &text[..text.len() / 2], text.len(), &[]).map(|_| false)
        }
        Some(Fault::Status { .. }) | None => http::json(to, 200, answer, &[]),
    }
}

/// The client hangs up at some time.
fn wait_for_the_end(to: &mut TcpStream) -> io::Result<bool> {
    _ = io::Read::read(to, &mut [0; 1]);
    Ok(false)
}

/// What the model says next.
#[derive(Debug, Clone, PartialEq)]
struct Reply {
    text: String,
    calls: Vec<Call>,
}

/// One message of a conversation, as far as the script looks at it.
#[derive(Debug, Default)]
struct Message {
    /// Words of the user; empty for anybody else's.
    user_text: String,
    tool_results: usize,
}

/// One provider's protocol.
trait Dialect {
    /// Under which a step names its tool calls.
    fn name(&self) -> &'static str;
    fn offers_tools(&self, asked: &Value) -> bool;
    fn messages(&self, asked: &Value) -> Vec<Message>;
    fn is_streamed(&self, request: &Request) -> bool;
    /// The events of a stream, each with its frame.
    fn events(&self, request: &Request, reply: &Reply, usage: &Usage) -> Vec<String>;
    fn whole(&self, request: &Request, reply: &Reply, usage: &Usage) -> Value;
    fn error(&self, status: u16) -> Value;
}
