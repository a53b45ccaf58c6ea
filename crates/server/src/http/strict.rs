//! JSON whose objects are objects. What derives `Deserialize` also reads a list, its items taken for fields in the order of
//! the code; nobody who sends one means that.

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};

pub(super) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(Strict(&mut json))?;
    json.end()?;
    Ok(value)
}

/// Whatever it wraps, and all that is within, reads structs as maps.
struct Strict<Inner>(Inner);

/// Methods that differ in nothing but the name.
macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Self::Error> {
            self.0.$method($($argument,)* Strict(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Strict(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    forward! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_char() deserialize_str() deserialize_string()
        deserialize_bytes() deserialize_byte_buf() deserialize_option() deserialize_unit() deserialize_seq()
        deserialize_map() deserialize_identifier() deserialize_ignored_any()
        deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(length: usize)
        deserialize_tuple_struct(name: &'static str, length: usize)
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }
}

macro_rules! hand_on {
    ($($method:ident: $type:ty)*) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.expecting(f)
    }

    hand_on! {
        visit_bool: bool
        visit_i64: i64
        visit_i128: i128
        visit_u64: u64
        visit_u128: u128
        visit_f64: f64
        visit_str: &str
        visit_borrowed_str: &'de str
        visit_string: String
        visit_bytes: &[u8]
        visit_borrowed_bytes: &'de [u8]
        visit_byte_buf: Vec<u8>
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, within: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Strict(within))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, within: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Strict(within))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, within: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Strict(within))
    }

    fn visit_map<A: MapAccess<'de>>(self, within: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Strict(within))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, within: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Strict(within))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(from))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(Strict(seed))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), A::Error> {
        self.0.variant_seed(Strict(seed)).map(|(value, variant)| (value, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, Strict(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Strict(visitor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cubicle_api as api;

    #[test]
    fn what_is_an_object_is_read_and_a_list_in_its_place_is_refused() {
        let good = [
            r#"{}"#,
            r#"{"limits": {"memory": 8388608}, "env": {"A": "b"}, "ttl_seconds": 5, "queue": true}"#,
            r#"{"files": [{"path": "a", "content": "b", "mode": 420}], "user": null}"#,
        ];
        for json in good {
            let strictly: api::CreateLease = from_slice(json.as_bytes()).unwrap();
            assert_eq!(strictly, serde_json::from_str(json).unwrap(), "{json}");
        }
        let bad =
            [r#"[]"#, r#"["default"]"#, r#"{"limits": [null, null]}"#, r#"{"files": [["a", "b"]]}"#, "{} {}"];
        for json in bad {
            assert!(from_slice::<api::CreateLease>(json.as_bytes()).is_err(), "{json}");
        }
        let execs = [
            (r#"{"command": "x", "stdin": {"text": "y"}, "tty": {"rows": 1, "columns": 2}}"#, true),
            (r#"{"command": ["x", "y"], "stdin": "stream"}"#, true),
            (r#"{"command": ["x"], "tty": [1, 2]}"#, false),
        ];
        for (json, expected) in execs {
            assert_eq!(from_slice::<api::CreateExec>(json.as_bytes()).is_ok(), expected, "{json}");
        }
        let pool = r#"{"pool": [1, 1, 1]}"#;
        assert!(from_slice::<api::PutTemplate>(pool.as_bytes()).is_err());
    }
}
