//! A lot of output: through the journal to a reader, against through a pipe to a reader.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cubicle_guest::client::Event;
use cubicle_model::{Command, ExecSpec, Fault, Kind, SandboxId};
use rustix::fs::{MemfdFlags, memfd_create};

use super::baseline::{not_started, program};
use super::progress::Progress;
use super::race::QUIET;
use super::row::{Goal, Row};
use super::samples::Samples;
use super::site::{Site, run};

const ID: &str = "journal.64mb";
const WHAT: &str = "64 MB of output through the journal to a reader";
const GOAL: Goal = Goal::AtMost(1.3);
const BYTES: usize = 64 << 20;

pub(crate) async fn measure(site: &Site, samples: usize, progress: &Progress) -> Row {
    match gather(site, samples, progress).await {
        Ok((journal, pipe)) => {
            Row::measured(ID, WHAT, &journal, "ms").over("cat | reader", &pipe).judged(GOAL)
        }
        Err(fault) => Row::failed(ID, WHAT, "ms", Some(GOAL), &fault),
    }
}

async fn gather(site: &Site, count: usize, progress: &Progress) -> Result<(Samples, Samples), Fault> {
    let (mut journal, mut pipe) = (Samples::default(), Samples::default());
    let file = host_file()?;
    // The first pair warms up and is not counted.
    for pair in 0..=count {
        progress.say(&format!("64 MB of output, {pair} of {count}"));
        tokio::time::sleep(QUIET).await;
        let through_pipe = cat_on_the_host(&file)?;
        // A journal has a limit and a new one each time is what a new sandbox has.
        let id = site.make().await?;
        let through_journal = cat_in_a_sandbox(site, id).await;
        site.destroy(id).await?;
        let through_journal = through_journal?;
        if pair > 0 {
            pipe.push_time(through_pipe);
            journal.push_time(through_journal);
        }
    }
    Ok((journal, pipe))
}

async fn cat_in_a_sandbox(site: &Site, id: SandboxId) -> Result<Duration, Fault> {
    let guest = site.backend.guest(id);
    let fill = format!("head -c {BYTES} /dev/zero > /workspace/data");
    run(&guest, &ExecSpec::new(Command::Shell(fill))).await?;
    let cat = ExecSpec::new(Command::Argv(vec!["cat".into(), "/workspace/data".into()]));
    tokio::time::sleep(QUIET).await;
    let from = Instant::now();
    let mut stream = guest.exec(&cat).await?;
    let mut read = 0;
    while let Some(frame) = stream.next().await? {
        if let Event::Stdout(bytes) = frame.event()? {
            read += bytes.len();
        }
    }
    let taken = from.elapsed();
    complete(read).map(|()| taken)
}

/// In memory, as the sandbox's workspace is.
fn host_file() -> Result<std::fs::File, Fault> {
    let full =
        |error: std::io::Error| Fault::new(Kind::Full, "there is no memory for 64 MB of data").because(error);
    let memory = memfd_create("cubicle-bench", MemfdFlags::CLOEXEC).map_err(|errno| full(errno.into()))?;
    let mut file = std::fs::File::from(memory);
    file.write_all(&vec![0; BYTES]).map_err(full)?;
    Ok(file)
}

fn cat_on_the_host(file: &std::fs::File) -> Result<Duration, Fault> {
    let mut command = program("cat");
    command.arg(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())).stdout(Stdio::piped());
    let mut buffer = vec![0; 128 * 1024];
    let from = Instant::now();
    let mut child = command.spawn().map_err(|error| not_started(&command, error))?;
    let mut read = 0;
    if let Some(mut output) = child.stdout.take() {
        loop {
            match output.read(&mut buffer).map_err(|error| not_started(&command, error))? {
                0 => break,
                count => read += count,
            }
        }
    }
    child.wait().map_err(|error| not_started(&command, error))?;
    let taken = from.elapsed();
    complete(read).map(|()| taken)
}

fn complete(read: usize) -> Result<(), Fault> {
    if read == BYTES {
        return Ok(());
    }
    Err(Fault::new(Kind::Internal, format!("{read} of {BYTES} bytes came through")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_through_the_pipe() {
        cat_on_the_host(&host_file().unwrap()).unwrap();
    }

    #[test]
    fn output_with_something_missing_is_not_measured() {
        assert!(complete(BYTES).is_ok());
        assert!(complete(BYTES - 1).unwrap_err().message().contains("67108863 of 67108864"));
    }
}
