//! What an earlier life of a journal left: its execs are remembered, and those that had not ended get an end.

use std::collections::BTreeMap;
use std::io;

use cubicle_model::Exit;

use super::exec::Exec;
use super::server::{Server, draft};
use crate::journal::{Header, Kind};
use crate::wire;

impl Server {
    /// Takes over the execs of an earlier life of this journal. Whatever had not ended then ended unseen.
    pub(super) fn adopt(&mut self, past: Past) -> io::Result<()> {
        for mut exec in past.execs.into_values() {
            if exec.exit_end.is_none() {
                let unknown = wire::Exited {
                    exit: Exit::Unknown,
                    timed_out: false,
                    user_us: 0,
                    sys_us: 0,
                    max_rss_kb: 0,
                };
                let payload = serde_json::to_vec(&unknown)?;
                let appended =
                    self.journal.append_from_reserve(&[draft(exec.number, Kind::Exit, &payload)])?;
                (exec.exit, exec.exit_end) = (Some(Exit::Unknown), Some(appended.end));
            }
            if exec.eof_end.is_none() {
                let payload = serde_json::to_vec(&exec.output)?;
                let appended =
                    self.journal.append_from_reserve(&[draft(exec.number, Kind::Eof, &payload)])?;
                exec.eof_end = Some(appended.end);
            }
            self.execs.insert(exec);
        }
        Ok(())
    }
}

/// The execs of an earlier life of a journal.
#[derive(Debug, Default)]
pub(super) struct Past {
    execs: BTreeMap<u32, Exec>,
}

impl Past {
    pub(super) fn note(&mut self, offset: u64, header: &Header, payload: &[u8]) {
        let end = offset + header.record_len();
        if header.kind == Kind::Start
            && let Ok(start) = serde_json::from_slice::<wire::Start>(payload)
        {
            let exec = Exec {
                id: start.exec_id,
                number: header.exec,
                start_seq: header.seq,
                start_offset: offset,
                output: Default::default(),
                exit: None,
                exit_end: None,
                eof_end: None,
                ending: None,
                execution: None,
                live: None,
            };
            self.execs.insert(header.exec, exec);
        }
        let Some(exec) = self.execs.get_mut(&header.exec) else { return };
        let reached = header.stream_offset + u64::from(header.payload_len);
        match header.kind {
            Kind::Stdout => exec.output.stdout = reached,
            Kind::Stderr => exec.output.stderr = reached,
            Kind::Exit => {
                exec.exit_end = Some(end);
                exec.exit = serde_json::from_slice(payload).ok().map(|exited: wire::Exited| exited.exit);
            }
            Kind::Eof => {
                exec.eof_end = Some(end);
                exec.output = serde_json::from_slice(payload).unwrap_or(exec.output);
            }
            _ => {}
        }
    }
}
