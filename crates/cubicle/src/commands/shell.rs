//! `cubicle shell`: a terminal in a sandbox of a server.

use std::io;

use cubicle_api::client::{Client, Keyboard, Screen, Shown, TerminalRequest};
use cubicle_model::{Exit, Fault, Kind, SandboxId};

use crate::args::Shell;
use crate::context::Context;
use crate::control_plane::{self, OwnLease};
use crate::failure::{Ending, Failure};
use crate::input;
use crate::output::{Output, Stream};
use crate::signals::{SIGCONT, SIGTSTP, SIGWINCH, Signals};
use crate::terminal::{self, RawMode};

/// What a terminal sends at the end of input.
const END_OF_INPUT: u8 = 4;

pub(crate) async fn shell(args: &Shell, context: &Context) -> Result<Ending, Failure> {
    let mut signals = Signals::catch()?;
    let client = control_plane::client(context)?;
    if let Some(target) = args.target {
        let sandbox = control_plane::sandbox(&client, target).await?;
        return Ok(converse(args, &client, sandbox, &mut signals).await?);
    }
    let lease = tokio::select! {
        lease = OwnLease::acquire(&client, args.template.as_deref(), Default::default()) => lease?,
        // A lease that was made all the same ends by itself soon.
        signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
    };
    let ending = converse(args, &client, lease.sandbox, &mut signals).await;
    lease.release(&client).await;
    Ok(ending?)
}

async fn converse(
    args: &Shell,
    client: &Client,
    sandbox: SandboxId,
    signals: &mut Signals,
) -> Result<Ending, Fault> {
    let asked = TerminalRequest {
        size: terminal::size().unwrap_or_default(),
        command: args.command.clone(),
        cwd: args.workdir.clone(),
    };
    let (keyboard, screen) = client.open_terminal(sandbox, &asked).await?;
    // Dropped on every way out of this function, which gives the terminal back.
    let _raw = RawMode::enter()?;
    tokio::select! {
        exit = show(screen) => match exit? {
            Exit::Signal(number) => Ok(Ending::Signal(number)),
            exit => Ok(Ending::Code(exit.shell_code())),
        },
        // The shell gets a hang-up when its terminal goes, as it would from any other.
        signal = hand_on(keyboard, signals) => Ok(Ending::Signal(signal)),
        never = control_plane::keep_alive(client, sandbox) => match never {},
    }
}

/// Shows what the shell prints until it has ended.
async fn show(mut screen: Screen) -> Result<Exit, Fault> {
    let mut output = Output::PassOn;
    let mut exit = None;
    while let Some(shown) = screen.next().await? {
        match shown {
            Shown::Started(_) => {}
            Shown::Ended(ended) => exit = Some(ended),
            Shown::Output(bytes) => match output.take(Stream::Stdout, &bytes).await {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(Fault::new(Kind::Internal, "cannot write to the terminal").because(error));
                }
                _ => {}
            },
        }
    }
    exit.ok_or_else(|| {
        Fault::new(Kind::Unavailable, "the terminal was closed before the shell ended")
            .hint("its sandbox may have ended, or the server is being started again")
    })
}

/// Hands keys and window sizes on, and returns with the signal that ends cubicle.
async fn hand_on(mut keyboard: Keyboard, signals: &mut Signals) -> i32 {
    let mut keys = Some(input::stream());
    loop {
        let next_keys = async {
            match &mut keys {
                Some(keys) => keys.recv().await,
                None => std::future::pending().await,
            }
        };
        // A terminal that is gone shows on the screen, so failures here are left to it.
        tokio::select! {
            // Nothing is lost when it is dropped: a signal is kept until it is asked for.
            number = signals.next() => match number {
                SIGWINCH => {
                    if let Some(size) = terminal::size() {
                        _ = keyboard.resize(size).await;
                    }
                }
                SIGCONT | SIGTSTP => {}
                number => {
                    _ = keyboard.hang_up().await;
                    return number;
                }
            },
            // Nothing is lost when it is dropped: what was read waits in the channel.
            typed = next_keys => match typed {
                Some(typed) => _ = keyboard.keys(typed).await,
                None => {
                    keys = None;
                    _ = keyboard.keys(vec![END_OF_INPUT]).await;
                }
            },
        }
    }
}
