//! One open transaction, and the values that go in and out of it.

use std::collections::HashMap;

use cubicle_model::Fault;
use postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use postgres::{Statement, Transaction};

use super::faults::fault;
use crate::Random;
use crate::sql::{Row, Sql, Value};

/// One open transaction.
pub(super) struct Open<'a> {
    pub(super) transaction: Transaction<'a>,
    prepared: &'a mut HashMap<String, Statement>,
    random: &'a Random,
    /// What the database refused; nothing more can be done in this transaction.
    pub(super) failed: Option<postgres::Error>,
    /// Something was changed, or may have been.
    pub(super) dirty: bool,
}

impl<'a> Open<'a> {
    pub(super) fn new(
        transaction: Transaction<'a>,
        prepared: &'a mut HashMap<String, Statement>,
        random: &'a Random,
    ) -> Self {
        Self { transaction, prepared, random, failed: None, dirty: false }
    }

    fn prepare(&mut self, statement: &str) -> Result<Statement, Fault> {
        if let Some(prepared) = self.prepared.get(statement) {
            return Ok(prepared.clone());
        }
        let outcome = self.transaction.prepare(&in_its_dialect(statement));
        let prepared = self.note(outcome)?;
        self.prepared.insert(statement.to_owned(), prepared.clone());
        Ok(prepared)
    }

    fn note<T>(&mut self, outcome: Result<T, postgres::Error>) -> Result<T, Fault> {
        outcome.map_err(|error| {
            let fault = fault(&error);
            self.failed = Some(error);
            fault
        })
    }
}

impl Sql for Open<'_> {
    fn run(&mut self, statement: &str, values: &[Value]) -> Result<u64, Fault> {
        self.dirty = true;
        let prepared = self.prepare(statement)?;
        let outcome = self.transaction.execute(&prepared, &references(values));
        self.note(outcome)
    }

    fn rows(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>, Fault> {
        self.dirty |= !statement.starts_with("SELECT");
        let prepared = self.prepare(statement)?;
        let outcome = self.transaction.query(&prepared, &references(values));
        let rows = self.note(outcome)?;
        rows.iter()
            .map(|row| {
                let cells: Result<Vec<Value>, _> = (0..row.len()).map(|column| cell(row, column)).collect();
                Ok(Row(cells.map_err(|error| fault(&error))?.into_iter()))
            })
            .collect()
    }

    fn define(&mut self, statement: &str) -> Result<(), Fault> {
        self.dirty = true;
        let outcome = self.transaction.batch_execute(statement);
        self.note(outcome)
    }

    fn and_lock(&self) -> &'static str {
        // As strong as an update, and no obstacle to rows that refer to this one.
        " FOR NO KEY UPDATE"
    }

    fn and_lock_free_ones(&self) -> &'static str {
        " FOR NO KEY UPDATE SKIP LOCKED"
    }

    fn fresh(&mut self) -> [u8; 16] {
        let mut bits = [0; 16];
        (self.random)(&mut bits);
        bits
    }
}

/// `?1` becomes `$1`, except within quotes.
fn in_its_dialect(statement: &str) -> String {
    let mut quote = None;
    let mut rest = statement.chars().peekable();
    let mut text = String::with_capacity(statement.len());
    while let Some(c) = rest.next() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
        let numbered = rest.peek().is_some_and(char::is_ascii_digit);
        text.push(if c == '?' && quote.is_none() && numbered { '$' } else { c });
    }
    text
}

fn references(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

fn cell(row: &postgres::Row, column: usize) -> Result<Value, postgres::Error> {
    let kind = row.columns()[column].type_();
    Ok(if *kind == Type::INT8 {
        row.try_get::<_, Option<i64>>(column)?.map_or(Value::Null, Value::Int)
    } else if *kind == Type::INT4 {
        row.try_get::<_, Option<i32>>(column)?.map_or(Value::Null, |number| Value::Int(number.into()))
    } else {
        row.try_get::<_, Option<String>>(column)?.map_or(Value::Null, Value::Text)
    })
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut postgres::types::private::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(number) if *kind == Type::INT4 => i32::try_from(*number)?.to_sql(kind, out),
            Self::Int(number) if *kind == Type::INT8 => number.to_sql(kind, out),
            Self::Text(text) if <&str as ToSql>::accepts(kind) => text.to_sql(kind, out),
            // Bytes of one kind must not be read as another.
            Self::Int(_) | Self::Text(_) => {
                Err(format!("a value does not fit its place, which is {kind}").into())
            }
        }
    }

    fn accepts(kind: &Type) -> bool {
        <i64 as ToSql>::accepts(kind) || <i32 as ToSql>::accepts(kind) || <&str as ToSql>::accepts(kind)
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_numbers_of_values_are_rewritten() {
        let table = [
            ("SELECT a FROM b WHERE c = ?1 AND d = ?12", "SELECT a FROM b WHERE c = $1 AND d = $12"),
            ("SELECT '?1', \"?2\", ?3", "SELECT '?1', \"?2\", $3"),
            ("SELECT 'it''s ?1', ?2", "SELECT 'it''s ?1', $2"),
            ("SELECT a ? b", "SELECT a ? b"),
        ];
        for (ours, theirs) in table {
            assert_eq!(in_its_dialect(ours), theirs);
        }
    }
}
