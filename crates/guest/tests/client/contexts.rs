//! Contexts through the client.

use cubicle_guest::client::{ClientError, Event, OutputLimits};
use cubicle_guest::wire::context::{Cell, CellEvent, CellStatus, ContextState, CreateContext};
use serde_json::json;

use super::{Sandbox, within};

fn cell(code: &str) -> Cell {
    Cell { code: code.into(), timeout_seconds: None }
}

impl Sandbox {
    fn new_context(&self) -> CreateContext {
        CreateContext { cwd: Some(self.directory.path().display().to_string()), ..Default::default() }
    }
}

#[tokio::test]
async fn a_cell_is_followed_to_its_end_and_its_context_goes_on() {
    within(async {
        let sandbox = Sandbox::start().await;
        let guest = &sandbox.guest;
        let id = guest.create_context(&sandbox.new_context()).await.unwrap().context_id;
        let mut stream = guest.execute_cell(id, &cell("x = 20\nprint('hi')\nx + 1")).await.unwrap();
        let mut events = Vec::new();
        while let Some(frame) = stream.next().await.unwrap() {
            match frame.event().unwrap() {
                Event::Stdout(bytes) => assert_eq!(bytes, b"hi\n"),
                Event::Cell(event) => events.push(event),
                other => panic!("{other:?}"),
            }
        }
        let data = [("text/plain".to_owned(), json!("21"))].into();
        let expected = [
            CellEvent::Begin { execution_count: 1 },
            CellEvent::Result { execution_count: 1, data },
            CellEvent::End { execution_count: 1, status: CellStatus::Success },
        ];
        assert_eq!(events, expected);
        // The connection of a cell that ended carries the next one.
        let outcome = guest.run_cell(id, &cell("x * 2"), OutputLimits::default()).await.unwrap();
        assert_eq!((outcome.execution_count, &outcome.result.unwrap()["text/plain"]), (2, &json!("40")));
        let attached = guest.attach_cell(id, stream.resume_from().unwrap() - 1).await.unwrap();
        assert_eq!(attached.context_id(), id);
    })
    .await;
}

#[tokio::test]
async fn a_long_event_is_whole_again() {
    within(async {
        let sandbox = Sandbox::start().await;
        let guest = &sandbox.guest;
        let id = guest.create_context(&sandbox.new_context()).await.unwrap().context_id;
        let code = "class Big:\n    def _repr_html_(self): return '\"' * 2_000_000\ndisplay(Big())\n1/0";
        let outcome = guest.run_cell(id, &cell(code), OutputLimits::default()).await.unwrap();
        assert_eq!(outcome.displays[0]["text/html"].as_str().map(str::len), Some(2_000_000));
        assert_eq!(
            (outcome.status, outcome.error.unwrap().name.as_str()),
            (CellStatus::Error, "ZeroDivisionError")
        );
        let mut stream = guest.execute_cell(id, &cell("Big()")).await.unwrap();
        let mut lengths = Vec::new();
        loop {
            let event = match stream.next().await.unwrap() {
                None => break,
                Some(frame) => match frame.event().unwrap() {
                    Event::Cell(event) => event,
                    other => panic!("{other:?}"),
                },
            };
            if let Some(CellEvent::Result { data, .. }) = stream.whole(event).unwrap() {
                lengths.push(data["text/html"].as_str().unwrap().len());
            }
        }
        assert_eq!(lengths, [2_000_000]);
    })
    .await;
}

#[tokio::test]
async fn a_context_is_interrupted_restarted_and_deleted() {
    within(async {
        let sandbox = Sandbox::start().await;
        let guest = &sandbox.guest;
        let id = guest.create_context(&sandbox.new_context()).await.unwrap().context_id;
        let mut stream = guest.execute_cell(id, &cell("import time\ntime.sleep(999)")).await.unwrap();
        assert_eq!(guest.context(id).await.unwrap().state, ContextState::Busy);
        let busy = guest.execute_cell(id, &cell("1")).await.unwrap_err();
        assert_eq!(busy.code(), Some("context_busy"));
        guest.interrupt_context(id).await.unwrap();
        let mut last = None;
        while let Some(frame) = stream.next().await.unwrap() {
            last = Some(frame.event().unwrap()).and_then(|event| match event {
                Event::Cell(event) => Some(event),
                _ => None,
            });
        }
        assert_eq!(last, Some(CellEvent::End { execution_count: 1, status: CellStatus::Interrupted }));
        let restarted = guest.restart_context(id).await.unwrap();
        assert_eq!((restarted.context_id, restarted.execution_count), (id, 0));
        assert_eq!(guest.contexts().await.unwrap(), [restarted]);
        guest.delete_context(id).await.unwrap();
        let gone = guest.context(id).await.unwrap_err();
        assert!(matches!(gone, ClientError::Refused { status: 404, .. }), "{gone:?}");
        let endless = Cell { code: "1".into(), timeout_seconds: Some(f64::NAN) };
        assert!(matches!(guest.execute_cell(id, &endless).await, Err(ClientError::Invalid(_))));
    })
    .await;
}
