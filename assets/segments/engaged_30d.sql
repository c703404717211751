-- title: People who came back lately
-- owner: team:growth
-- description: Active people who opted in and were seen within the last days, the most recent first.
-- param days int = 30: how many days back a visit counts

SELECT user_id, email, timezone, locale, first_name, city, country, tier
FROM users
WHERE is_active
  AND marketing_opt_in
  AND last_login_at > :as_of - make_interval(days => :days)
  AND last_login_at <= :as_of
ORDER BY last_login_at DESC, user_id
