//! The little of a database that transactions need: statements with numbered values, and rows of texts and numbers.
//!
//! Transactions are written once, as plain functions over `Sql`. Statements are in the dialect that SQLite and PostgreSQL
//! share; values are `?1`, `?2`, …

use std::str::FromStr;

use cubicle_model::{Fault, Kind, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One open transaction.
pub(crate) trait Sql {
    /// Runs a statement and says how many rows it changed.
    fn run(&mut self, statement: &str, values: &[Value]) -> Result<u64, Fault>;

    fn rows(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>, Fault>;

    /// Runs a statement that defines a table or an index.
    fn define(&mut self, statement: &str) -> Result<(), Fault>;

    /// Appended to a `SELECT` whose rows this transaction will change and nobody else may meanwhile.
    fn and_lock(&self) -> &'static str;

    /// The same, passing over rows that somebody else is about to change.
    fn and_lock_free_ones(&self) -> &'static str;

    /// Unpredictable bits for a new id.
    fn fresh(&mut self) -> [u8; 16];
}

impl dyn Sql + '_ {
    pub(crate) fn row(&mut self, statement: &str, values: &[Value]) -> Result<Option<Row>, Fault> {
        Ok(self.rows(statement, values)?.into_iter().next())
    }

    /// The one number that a statement answers.
    pub(crate) fn number(&mut self, statement: &str, values: &[Value]) -> Result<i64, Fault> {
        self.row(statement, values)?.ok_or_else(|| damaged("a count has no row"))?.int()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Text(String),
}

/// The values of a statement, in the order of their numbers.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::sql::Value::from($value)),*] };
}
pub(crate) use values;

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(value.into())
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        // What does not fit is larger than anything that is stored.
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(value.into())
    }
}

impl From<Timestamp> for Value {
    fn from(value: Timestamp) -> Self {
        Self::Int(value.as_millisecond())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::Text(value.clone())
    }
}

macro_rules! by_text {
    ($($kind:ty),* $(,)?) => {
        $(
            impl From<$kind> for Value {
                fn from(value: $kind) -> Self {
                    Self::Text(value.to_string())
                }
            }

            impl From<&$kind> for Value {
                fn from(value: &$kind) -> Self {
                    Self::Text(value.to_string())
                }
            }
        )*
    };
}

by_text!(
    cubicle_model::ArtifactId,
    cubicle_model::DeliveryId,
    cubicle_model::EventId,
    cubicle_model::ExecId,
    cubicle_model::KeyId,
    cubicle_model::LeaseId,
    cubicle_model::NodeId,
    cubicle_model::SandboxId,
    cubicle_model::TaskId,
    cubicle_model::RequestId,
    cubicle_model::SecretName,
    cubicle_model::Name,
    cubicle_model::UserName,
    cubicle_model::TemplateRef,
    cubicle_model::WebhookId,
);

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The conditions of a list: only those that were asked for, so that the database can use its indexes.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    text: String,
    values: Vec<Value>,
}

impl Conditions {
    /// `condition` has one `?` for each of its values.
    pub(crate) fn and(mut self, condition: &str, values: &[Value]) -> Self {
        self.text.push_str(if self.text.is_empty() { " WHERE " } else { " AND " });
        let mut parts = condition.split('?');
        self.text.push_str(parts.next().unwrap_or_default());
        for (part, value) in parts.zip(values) {
            self.values.push(value.clone());
            self.text.push_str(&format!("?{}{part}", self.values.len()));
        }
        self
    }

    /// The condition only where there is a value for it.
    pub(crate) fn and_if(self, condition: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.and(condition, &[value.into()]),
            None => self,
        }
    }

    /// The rows of `SELECT columns FROM table`, in an order, at most so many.
    pub(crate) fn select(
        mut self,
        sql: &mut dyn Sql,
        columns: &str,
        table: &str,
        order: &str,
        most: i64,
    ) -> Result<Vec<Row>, Fault> {
        self.values.push(most.into());
        let (text, limit) = (&self.text, self.values.len());
        sql.rows(
            &format!("SELECT {columns} FROM {table}{text} ORDER BY {order} LIMIT ?{limit}"),
            &self.values,
        )
    }
}

/// A value that is kept as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<Value, Fault> {
    serde_json::to_string(value)
        .map(Value::Text)
        .map_err(|error| Fault::new(Kind::Internal, "a value has no form in the store").because(error))
}

/// One row of an answer, read from left to right.
#[derive(Debug)]
pub(crate) struct Row(pub(crate) std::vec::IntoIter<Value>);

impl Row {
    fn value(&mut self) -> Result<Value, Fault> {
        self.0.next().ok_or_else(|| damaged("a row is too short"))
    }

    pub(crate) fn int(&mut self) -> Result<i64, Fault> {
        self.optional_int()?.ok_or_else(|| damaged("a number is missing"))
    }

    pub(crate) fn optional_int(&mut self) -> Result<Option<i64>, Fault> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Int(number) => Ok(Some(number)),
            Value::Text(_) => Err(damaged("a text stands where a number should")),
        }
    }

    /// A number that is never negative.
    pub(crate) fn unsigned(&mut self) -> Result<u64, Fault> {
        u64::try_from(self.int()?).map_err(|_| damaged("a number is negative"))
    }

    pub(crate) fn optional_unsigned(&mut self) -> Result<Option<u64>, Fault> {
        self.optional_int()?.map(u64::try_from).transpose().map_err(|_| damaged("a number is negative"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Fault> {
        Ok(self.int()? != 0)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Fault> {
        self.optional_time()?.ok_or_else(|| damaged("a time is missing"))
    }

    pub(crate) fn optional_time(&mut self) -> Result<Option<Timestamp>, Fault> {
        let number = self.optional_int()?;
        number.map(Timestamp::from_millisecond).transpose().map_err(|_| damaged("a time is out of range"))
    }

    pub(crate) fn text(&mut self) -> Result<String, Fault> {
        self.optional_text()?.ok_or_else(|| damaged("a text is missing"))
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<String>, Fault> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            Value::Int(_) => Err(damaged("a number stands where a text should")),
        }
    }

    pub(crate) fn parsed<T: FromStr>(&mut self) -> Result<T, Fault> {
        self.text()?.parse().map_err(|_| damaged("a text is not what its column says"))
    }

    pub(crate) fn optional_parsed<T: FromStr>(&mut self) -> Result<Option<T>, Fault> {
        let text = self.optional_text()?;
        text.map(|text| text.parse()).transpose().map_err(|_| damaged("a text is not what its column says"))
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        self.optional_json()?.ok_or_else(|| damaged("a value is missing"))
    }

    pub(crate) fn optional_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Fault> {
        let text = self.optional_text()?;
        text.map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| damaged("a value is not what its column says").because(error))
    }

    /// One of a closed set, by its name.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T], name: fn(T) -> &'static str) -> Result<T, Fault> {
        let text = self.text()?;
        all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| damaged("an unknown word"))
    }

    pub(crate) fn optional_one_of<T: Copy>(
        &mut self,
        all: &[T],
        name: fn(T) -> &'static str,
    ) -> Result<Option<T>, Fault> {
        let Some(text) = self.optional_text()? else { return Ok(None) };
        let found = all.iter().copied().find(|one| name(*one) == text);
        found.map(Some).ok_or_else(|| damaged("an unknown word"))
    }
}

/// What only a defect, or somebody else's hand, can have made of the database.
pub(crate) fn damaged(what: &'static str) -> Fault {
    Fault::new(Kind::Internal, format!("the store holds what cannot be read: {what}"))
}
