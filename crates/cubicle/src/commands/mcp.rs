//! `cubicle mcp`: the tools over standard input and output, for an MCP client that starts this program.

mod local;
mod served;

use std::sync::Arc;

use cubicle_model::{Fault, Kind};
use cubicle_tools::Bench;
use cubicle_tools::mcp::{Benches, Server};
use rmcp::ServiceExt;
use rmcp::model::ErrorData;
use rmcp::service::{RequestContext, RoleServer};

use crate::args::Mcp;
use crate::context::Context;
use crate::control_plane;
use crate::failure::{Ending, Failure, invalid};
use crate::signals::Signals;

pub(crate) async fn mcp(args: &Mcp, context: &Context) -> Result<Ending, Failure> {
    let mut signals = Signals::catch()?;
    if context.settings.server.url.is_some() {
        if args.sandbox.asks_for_anything() {
            return Err(invalid("a server's sandboxes are as its templates say")
                .hint("leave the sandbox options out, or leave the server out")
                .into());
        }
        let bench =
            Arc::new(served::ServerBench::new(control_plane::client(context)?, args.template.clone()));
        let ending = converse(Arc::clone(&bench) as Arc<dyn Bench>, &mut signals).await;
        bench.release().await;
        return Ok(ending?);
    }
    if args.template.is_some() {
        return Err(invalid("templates are a server's").hint("name the server with --server URL").into());
    }
    let making = local::LocalBench::make(&args.sandbox, context);
    let bench = tokio::select! {
        bench = making => Arc::new(bench?),
        // Bound sandboxes end with this process.
        signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
    };
    let ending = converse(Arc::clone(&bench) as Arc<dyn Bench>, &mut signals).await;
    bench.destroy_all().await;
    Ok(ending?)
}

/// Every request is for the same sandboxes.
#[derive(Clone)]
struct One(Arc<dyn Bench>);

impl Benches for One {
    fn bench(&self, _: &RequestContext<RoleServer>) -> Result<Arc<dyn Bench>, ErrorData> {
        Ok(Arc::clone(&self.0))
    }
}

/// Answers the client until it hangs up, or a signal comes.
async fn converse(bench: Arc<dyn Bench>, signals: &mut Signals) -> Result<Ending, Fault> {
    let conversation = async {
        let streams = (tokio::io::stdin(), tokio::io::stdout());
        let running = match Server::new(One(bench)).serve(streams).await {
            Ok(running) => running,
            // A client that hangs up before it has said anything.
            Err(error) if error.to_string().contains("closed") => return Ok(Ending::Code(0)),
            Err(error) => {
                return Err(Fault::new(Kind::Invalid, "the client does not speak MCP").because(error));
            }
        };
        match running.waiting().await {
            Ok(_) => Ok(Ending::Code(0)),
            Err(error) => Err(Fault::new(Kind::Internal, "the conversation broke off").because(error)),
        }
    };
    tokio::select! {
        ended = conversation => ended,
        // What it did is told by how this program ends.
        signal = signals.next_ending() => Ok(Ending::Signal(signal)),
    }
}
